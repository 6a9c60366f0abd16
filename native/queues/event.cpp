// SPDX-License-Identifier: Apache-2.0
#include <pinning/lane.hpp>

namespace pinning {

namespace {

void wait_for(VendorEvent& event, Meanwhile meanwhile) {
  for (bool over = false; !over;) {
    over = event.wait_a_while();
    if (meanwhile != nullptr) meanwhile();
  }
}

}  // namespace

void Event::make_askable(bool block) {
  if (place_ == nullptr) return;
  Lane& lane = *place_->lane_;
  lane.check();
  if (block && !is_over()) lane.check_wait();
  auto const is_askable = [&] {
    std::lock_guard const state(lane.state_);
    return place_->vendor_ != nullptr || place_->error_ != nullptr || is_over();
  };
  if (is_askable()) return;
  lane.ask_for_all(place_, block);  // needs no vendor's event
  if (!is_askable()) lane.record(*place_);
}

bool Event::ask(bool block, Meanwhile meanwhile) {
  if (place_ == nullptr) return true;
  Lane& lane = *place_->lane_;
  // If the operation is known to be over, the vendor's event may have been recorded after that: it only has the error
  // then, and may be reached much later.
  if (auto const vendor = lane.recorded(*place_)) {
    if (block && !is_over()) {
      wait_for(*vendor, meanwhile);
    } else if (!vendor->done() && !is_over()) {
      return false;
    }
    lane.finish(position_);
    return true;
  }
  raise_error();
  lane.finish(0);
  return true;
}

bool Event::done() {
  make_askable(false);
  return ask(false, nullptr);
}

void Event::wait(Meanwhile meanwhile) {
  make_askable(true);
  ask(true, meanwhile);
}

SharedTimeline const& Event::timeline() const noexcept { return place_ == nullptr ? timeline_ : place_->lane_->timeline(); }

void Event::add_history(Dependencies& to) const {
  if (timeline() == nullptr) return;
  if (before_ != nullptr) to.add(*before_);
  to.add(timeline(), position_);
}

void Event::forget() noexcept {
  timeline_ = timeline();
  place_.reset();
}

std::shared_ptr<VendorEvent> Event::recorded() {
  if (place_ == nullptr) throw InvalidArgument("the event has no time: its operation failed, or was never submitted");
  return place_->lane_->record(*place_);
}

std::shared_ptr<VendorEvent> Event::if_recorded() const {
  return place_ == nullptr ? nullptr : place_->lane_->recorded(*place_);
}

double Event::seconds_since(Event& first, Meanwhile meanwhile) {
  auto const begin = first.recorded(), end = recorded();
  wait_for(*begin, meanwhile);
  wait_for(*end, meanwhile);
  return end->seconds_since(*begin);
}

void Event::raise_error() const {
  if (place_ == nullptr) return;
  std::exception_ptr error;
  {
    std::lock_guard const state(place_->lane_->state_);
    error = place_->error_;
  }
  if (error != nullptr) std::rethrow_exception(error);
}

}  // namespace pinning
