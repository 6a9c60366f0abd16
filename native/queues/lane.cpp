// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <pinning/generation.hpp>
#include <pinning/lane.hpp>
#include <utility>

namespace pinning {

namespace {

constexpr std::uint64_t poll_every = 64;  // operations

thread_local bool destroying = false;  // whether this thread destroys operations

std::string vendor_name(VendorDevice const& device) { return device.name().substr(0, device.name().find(':')); }

}  // namespace

// ---- events ----

bool Event::done() {
  lane_->check();
  // Asked in any case: it alone may have the error of its operation.
  if (!vendor_->done() && !is_known_over()) return false;
  lane_->finish(position_);
  return true;
}

void Event::wait() {
  if (done()) return;
  vendor_->wait();
  lane_->finish(position_);
}

// ---- making a lane ----

Lane::Lane(VendorDevice& device, std::unique_ptr<VendorQueue> queue, bool adopted)
    : device_(device), vendor_(vendor_name(device)), queue_(std::move(queue)), adopted_(adopted), made_in_(generation()) {}

std::shared_ptr<Lane> Lane::make(VendorDevice& device) {
  return std::shared_ptr<Lane>(new Lane(device, device.make_queue(), false));
}

Lane::~Lane() {
  if (made_in_ != generation()) {  // of a parent process, whose threads are missing here
    queue_.release();
    new std::list<Marker>(std::move(markers_));
  }
  for (Kept& each : kept_) each.operation.release();
}

void Lane::check() const {
  if (made_in_ == generation()) return;
  throw Unavailable("this queue belongs to the process that made it, and this is a fork of it: make queues after the fork");
}

// ---- submission ----

bool Lane::may_write(Span range, Events const& after) {
  check();
  if (std::any_of(after.begin(), after.end(), [](Event const* each) { return !each->is_known_over(); })) return true;
  auto const meet = [&] {
    std::lock_guard const state(state_);
    return writes_.meet(timeline_->reached(), range.start, range.end - range.start);
  };
  if (!meet()) return false;
  poll();
  return meet();
}

void Lane::submit(std::unique_ptr<CopyOperation> operation, Events const& after) {
  poll_now_and_then(put(std::move(operation), after, Mark::if_adopted).position_);
}

Event Lane::submit_with_event(std::unique_ptr<CopyOperation> operation, Events const& after) {
  Event event = put(std::move(operation), after, Mark::always);
  poll_now_and_then(event.position_);
  return event;
}

Event Lane::record() { return submit_with_event(nullptr, {}); }

void Lane::wait(Events const& events) { submit(nullptr, events); }

/// Submit one operation, and a vendor's event after it. The returned event has that only if it is marked.
Event Lane::put(std::unique_ptr<CopyOperation> operation, Events const& after, Mark mark) {
  check();
  for (Event const* each : after) {
    each->lane_->check();
    if (each->lane_->vendor_ != vendor_) refuse_event(vendor_);
  }
  // Made before anything is submitted, so that nothing that is in progress is lost for want of memory; and destroyed, if
  // the submission fails, without the lock.
  std::list<Kept> kept;
  std::list<Marker> marker;
  CopyOperation* const submitted = operation.get();
  if (submitted != nullptr) kept.push_back({0, std::move(operation)});
  bool const marks = adopted_ || mark == Mark::always;
  if (marks) marker.emplace_back();
  std::lock_guard const submitting(submitting_);
  if (closed_) throw InvalidArgument("the queue is closed: make another");
  if (adopted_ && queue_->capture() != 0) {
    throw GraphCapture("the stream is being captured into a graph, and a copy of this interface can be waited for, which "
                       "work in a graph cannot: record the vendor's own copies of locked memory instead");
  }
  Event event(shared_from_this(), submitted_.load() + 1);
  try {
    begin(event.position_, submitted, after);
    if (submitted != nullptr) {
      submitted->submit(*queue_);
      event.how_ = How{submitted->path(), submitted->reason()};
    }
  } catch (...) {
    submitted_ = event.position_;  // the position stays: a wait may have been submitted
    throw;
  }
  try {
    if (marks) event.vendor_ = marker.front().event = queue_->record();
  } catch (...) {  // unless an event is wanted, the next marker shows the progress
    marker.clear();
    if (mark == Mark::always) {
      try {
        queue_->synchronize();
        submitted_ = event.position_;
      } catch (...) {  // it may be in progress; the first error says more
        end(event.position_, kept, marker);
      }
      throw;
    }
  }
  end(event.position_, kept, marker);
  return event;
}

/// Note what an operation may write, and make it wait.
void Lane::begin(std::uint64_t position, CopyOperation const* operation, Events const& after) {
  {
    std::lock_guard const state(state_);
    if (!after.empty()) writes_.add_unknown(position);  // what it waits for may write anything
    if (operation != nullptr) {
      auto const [start, end] = operation->written();
      writes_.add(position, start, end - start);
    }
  }
  for (Event const* each : after) {
    if (each->lane_.get() != this && !each->is_known_over()) queue_->wait(*each->vendor_);
  }
}

/// Keep what was submitted, and the marker behind it; each list has one or none.
void Lane::end(std::uint64_t position, std::list<Kept>& kept, std::list<Marker>& marker) noexcept {
  std::lock_guard const state(state_);
  for (Kept& each : kept) each.position = position;
  for (Marker& each : marker) each.position = position;
  kept_.splice(kept_.end(), kept);
  markers_.splice(markers_.end(), marker);
  submitted_ = position;
}

// ---- progress ----

void Lane::poll_now_and_then(std::uint64_t position) {
  if (position - polled_.load(std::memory_order_relaxed) < poll_every) return;
  polled_.store(position, std::memory_order_relaxed);
  if (poll() || adopted_) return;
  // Without an event only a wait shows the progress of a queue that is never idle.
  std::lock_guard const submitting(submitting_);
  try {
    if (!closed_) mark_end();
  } catch (std::exception const&) {  // the next one will do
  }
}

/// (submitting_) Add a marker behind all that was submitted.
void Lane::mark_end() {
  std::list<Marker> marker(1);
  marker.front() = {submitted_.load(), queue_->record()};
  std::lock_guard const state(state_);
  markers_.splice(markers_.end(), marker);
}

bool Lane::poll() {
  check();
  if (is_over()) return true;
  if (!adopted_) {
    std::uint64_t const submitted = submitted_.load();
    try {
      if (queue_->done()) reach(submitted);
    } catch (std::exception const&) {  // a marker or `synchronize` reports it
    }
  }
  read_markers();
  return is_over();
}

void Lane::read_markers() {
  for (;;) {
    Marker first;
    {
      std::lock_guard const state(state_);
      if (markers_.empty()) return;
      first = markers_.front();
    }
    std::exception_ptr error;
    try {
      if (!first.event->done()) return;
      reach(first.position);
    } catch (...) {
      error = std::current_exception();
    }
    std::lock_guard const state(state_);
    bool const is_ours = !markers_.empty() && markers_.front().event == first.event;  // else another thread has the answer
    if (is_ours) markers_.pop_front();
    if (error != nullptr && is_ours && error_ == nullptr) error_ = error;  // the vendor may not report it again
  }
}

/// Note that everything up to here is complete, and destroy its operations.
void Lane::reach(std::uint64_t position) {
  std::list<Kept> finished;
  ++destroying_;  // before others see that it is complete
  {
    std::lock_guard const state(state_);
    timeline_->reach(position);
    writes_.reach(position);
    auto const is_later = [position](Kept const& each) { return each.position > position; };
    finished.splice(finished.end(), kept_, kept_.begin(), std::find_if(kept_.begin(), kept_.end(), is_later));
  }
  bool const nested = std::exchange(destroying, true);
  finished.clear();
  destroying = nested;
  if (--destroying_ == 0) destroying_.notify_all();
}

/// The same, for a caller that may free the memory next: operations that other threads are destroying are awaited. Not
/// within such a destruction itself, which may call a program's registrar.
void Lane::finish(std::uint64_t position) {
  if (timeline_->reached() < position) reach(position);
  if (destroying) return;
  while (std::uint32_t const others = destroying_.load()) destroying_.wait(others);
}

// ---- the end ----

void Lane::raise_error() {
  std::exception_ptr error;
  {
    std::lock_guard const state(state_);
    error = std::exchange(error_, nullptr);
  }
  if (error != nullptr) std::rethrow_exception(error);
}

void Lane::synchronize() {
  check();
  std::uint64_t const submitted = submitted_.load();
  try {
    queue_->synchronize();
  } catch (...) {
    read_markers();  // of the same failure, as far as they have one
    std::lock_guard const state(state_);
    error_ = nullptr;
    throw;
  }
  read_markers();
  finish(submitted);
  raise_error();
}

void Lane::drain() {
  check();
  if (!adopted_) return synchronize();
  std::uint64_t const upto = submitted_.load();
  if (timeline_->reached() < upto && last_marker(upto).position < upto) {  // the vendor has refused to record it
    try {
      std::lock_guard const submitting(submitting_);
      mark_end();
    } catch (std::exception const&) {
      return synchronize();
    }
  }
  for (Marker last; (last = last_marker(upto)).event != nullptr; read_markers()) {
    try {
      last.event->wait();
    } catch (std::exception const&) {  // `read_markers` gets the error once more
    }
  }
  finish(0);
  raise_error();
}

/// The last marker up to a position or, if that has none, the first behind it; nothing if there is none.
Lane::Marker Lane::last_marker(std::uint64_t upto) {
  std::lock_guard const state(state_);
  Marker last{};
  for (Marker const& each : markers_) {
    if (each.position > upto && last.event != nullptr) break;
    last = each;
    if (each.position >= upto) break;
  }
  return timeline_->reached() < upto ? last : Marker{};
}

void Lane::close() {
  check();
  {
    std::lock_guard const submitting(submitting_);
    if (std::exchange(closed_, true)) return;
  }
  std::exception_ptr first;
  auto const attempt = [&](auto&& step) {
    try {
      step();
      return true;
    } catch (...) {
      if (first == nullptr) first = std::current_exception();
      return false;
    }
  };
  auto const drained = [&] { return attempt([&] { drain(); }); };
  if (!drained()) drained();  // the first error may be that of the work
  // What a queue of our own has been closed with is over, even if its device is lost; others' queues run on.
  if (attempt([&] { queue_->close(); }) && !adopted_) finish(submitted_.load());
  if (first != nullptr) std::rethrow_exception(first);
}

}  // namespace pinning
