// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <pinning/queue.hpp>
#include <utility>

namespace pinning {

std::unique_ptr<Queue> Queue::make(VendorDevice& device, bool ordered) {
  return std::make_unique<Queue>(Lane::make(device, ordered));
}

std::vector<std::shared_ptr<Lane>> Queue::lanes() {
  first().check();
  std::lock_guard const state(state_);
  std::vector<std::shared_ptr<Lane>> open;
  std::copy_if(lanes_.begin(), lanes_.end(), std::back_inserter(open), [](auto const& lane) { return !lane->is_closed(); });
  return open;
}

// ---- what an operation comes after ----

Queue::Turn Queue::turn(Events const& wait_for) {
  first().check();
  Turn turn;
  Dependencies awaited, passed;
  for (Event const* each : wait_for) each->add_history(awaited);
  std::vector<Event> over;  // destroyed without the lock
  {
    std::lock_guard const state(state_);
    if (!barrier_.empty()) {
      for (Event const& each : barrier_) {
        each.add_history(awaited);
        if (each.is_over()) each.add_history(passed);  // what it came after is over too, but perhaps not known to be
      }
      auto const left = std::partition(barrier_.begin(), barrier_.end(), [](Event const& each) { return each.is_over(); });
      over.assign(std::make_move_iterator(barrier_.begin()), std::make_move_iterator(left));
      barrier_.erase(barrier_.begin(), left);
      before_ = joined(before_, passed);
      turn.barrier = barrier_;
    }
    turn.known = before_;
  }
  turn.before = joined(turn.known, awaited);
  turn.lane = lane_for(wait_for);
  auto const add = [&](Event& event) {
    Lane const* const other = event.lane();
    if (other == nullptr || other == turn.lane.get() || event.is_over()) return;
    if (ordered_ && turn.known != nullptr && turn.known->covers(*event.timeline(), event.position())) return;
    (other->vendor() == first().vendor() ? turn.after : turn.foreign).push_back(&event);
  };
  for (Event* each : wait_for) add(*each);
  for (Event& each : turn.barrier) add(each);
  return turn;
}

std::shared_ptr<Lane> Queue::lane_for(Events const& wait_for) {
  if (ordered_) return first_;
  auto const all = lanes();
  for (auto const& lane : all) {
    // Behind an event that it waits for, if nothing was submitted after that: then it need not wait at all.
    auto const is_last = [&](Event const* each) { return each->lane() == lane.get() && each->position() == lane->count(); };
    if (std::any_of(wait_for.begin(), wait_for.end(), is_last)) return lane;
  }
  for (auto const& lane : all) {
    if (lane->poll()) return lane;
  }
  if (all.size() < most_lanes) return nullptr;
  auto const pending = [](std::shared_ptr<Lane> const& lane) { return lane->count() - lane->timeline()->reached(); };
  return *std::min_element(all.begin(), all.end(), [&](auto const& a, auto const& b) { return pending(a) < pending(b); });
}

void Queue::add(Turn& turn, std::shared_ptr<Lane> lane) {
  std::lock_guard const state(state_);
  lanes_.push_back(lane);
  turn.lane = std::move(lane);
}

void Queue::note(Turn const& turn, Event& event) {
  event.before_ = turn.before;
  if (turn.before == turn.known) return;
  std::lock_guard const state(state_);
  SharedDependencies& known = ordered_ ? before_ : past_;
  known = known == turn.known ? turn.before : joined(known, *turn.before);  // other threads submit meanwhile
  waited_ = true;
}

void Queue::note(Event& event) {
  if (!waited_) return;
  std::lock_guard const state(state_);
  event.before_ = before_;
}

void Queue::note_tail(Event& event) {
  Dependencies so_far;
  so_far.add_upto(event.timeline(), event.position());
  std::lock_guard const state(state_);
  event.before_ = joined(past_, so_far);
}

void Queue::bar(Event event) {
  if (event.is_over()) return;
  std::lock_guard const state(state_);
  barrier_.push_back(std::move(event));
}

void Queue::lift() {
  std::vector<Event> barrier;  // destroyed without the lock
  std::lock_guard const state(state_);
  barrier.swap(barrier_);
}

void Queue::add_history(Dependencies& to, Events const& wait_for) {
  for (Event const* each : wait_for) each->add_history(to);
  std::lock_guard const state(state_);
  if (ordered_) to.add_upto(first().timeline(), first().count());
  if (before_ != nullptr) to.add(*before_);
  for (Event const& each : barrier_) each.add_history(to);
}

bool Queue::may_write(Span range, Events const& wait_for) {
  auto const all = lanes();
  {
    std::lock_guard const state(state_);
    if (std::any_of(barrier_.begin(), barrier_.end(), [](Event const& each) { return !each.is_over(); })) return true;
  }
  return std::any_of(all.begin(), all.end(), [&](auto const& lane) { return lane->may_write(range, wait_for); });
}

bool Queue::is_shared() {
  std::lock_guard const state(state_);
  return std::any_of(lanes_.begin(), lanes_.end(), [](auto const& lane) { return lane->is_shared(); });
}

// ---- for callers without a wait for other vendors ----

/// The turn of an operation in a lane that exists.
Queue::Turn Queue::turn_in_lane(Events const& wait_for) {
  Turn turn = this->turn(wait_for);
  if (!turn.foreign.empty()) refuse_event(first().vendor());
  if (turn.lane == nullptr) add(turn, Lane::make(first().device(), ordered_));
  return turn;
}

Event Queue::submit(std::unique_ptr<CopyOperation> copy, Events const& wait_for) {
  Turn const turn = turn_in_lane(wait_for);
  Event event = turn.lane->submit(std::move(copy), turn.after);
  note(turn, event);
  return event;
}

/// A point that is reached when the wait list and, in order, all earlier work are complete.
Event Queue::point(Events const& wait_for) {
  Turn const turn = turn_in_lane(wait_for);
  Event event = turn.lane->submit_uncaptured(nullptr, turn.after);
  note(turn, event);
  return event;
}

Event Queue::record() {
  first().check_uncaptured("an event cannot stand in a graph");
  std::vector<Event> tails;  // out of order, one in each lane
  Events all;
  if (!ordered_) {
    for (auto const& lane : lanes()) note_tail(tails.emplace_back(lane->submit_uncaptured(nullptr, {})));
    for (Event& each : tails) all.push_back(&each);
  }
  Event event = point(all);
  event.recorded();
  return event;
}

void Queue::wait(Events const& wait_for) {
  first().check_uncaptured("a wait cannot stand in a graph");
  Event event = point(wait_for);
  if (!ordered_) bar(std::move(event));
}

/// For each of the lanes, also after an error, of which the first is thrown at the end.
template <class Act>
void Queue::for_each_lane(Act act) {
  std::exception_ptr first;
  for (auto const& lane : lanes()) {
    try {
      act(*lane);
    } catch (std::exception const&) {
      if (first == nullptr) first = std::current_exception();
    }
  }
  if (first != nullptr) std::rethrow_exception(first);
}

void Queue::synchronize(Meanwhile meanwhile) {
  for_each_lane([&](Lane& lane) { lane.synchronize(meanwhile); });
}

void Queue::close(Meanwhile meanwhile) {
  for_each_lane([&](Lane& lane) { lane.is_adopted() ? lane.drain(meanwhile) : lane.close(meanwhile); });
  lift();
}

}  // namespace pinning
