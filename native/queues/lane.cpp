// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <pinning/generation.hpp>
#include <pinning/lane.hpp>
#include <utility>

namespace pinning {

namespace {

constexpr std::uint64_t poll_every = 64;  // operations

std::string vendor_name(VendorDevice const& device) { return device.name().substr(0, device.name().find(':')); }

}  // namespace

// ---- events ----

bool Event::done() {
  lane_->check();
  if (!is_known_over() && !vendor_->done()) return false;
  lane_->finish(position_);
  return true;
}

void Event::wait() {
  lane_->check();
  if (!is_known_over()) vendor_->wait();
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
    new std::deque<Marker>(std::move(markers_));
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
  return meet() && !poll() && meet();
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
    if (each->lane_->vendor_ != vendor_) refuse_event(vendor_);
  }
  std::lock_guard const submitting(submitting_);
  if (closed_) throw InvalidArgument("the queue is closed: make another");
  if (adopted_ && queue_->capture() != 0) {
    throw GraphCapture("the stream is being captured into a graph, and a copy of this interface can be waited for, which "
                       "work in a graph cannot: record the vendor's own copies of locked memory instead");
  }
  Event event(shared_from_this(), submitted_.load() + 1);
  try {
    begin(event.position_, operation.get(), after);
    if (operation != nullptr) {
      operation->submit(*queue_);
      event.how_ = How{operation->path(), operation->reason()};
    }
  } catch (...) {  // the position stays: a wait may have been submitted
    end(event.position_, nullptr, nullptr);
    throw;
  }
  try {
    if (adopted_ || mark == Mark::always) event.vendor_ = queue_->record();
  } catch (...) {  // unless an event is wanted, the next marker shows the progress
    if (mark == Mark::always) {
      try {
        queue_->synchronize();  // so that nothing is in progress
      } catch (...) {           // the first error says more
      }
      end(event.position_, std::move(operation), nullptr);
      throw;
    }
  }
  end(event.position_, std::move(operation), event.vendor_);
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

void Lane::end(std::uint64_t position, std::unique_ptr<CopyOperation> operation,
               std::shared_ptr<VendorEvent> const& marker) {
  std::lock_guard const state(state_);
  if (operation != nullptr) kept_.push_back({position, std::move(operation)});
  if (marker != nullptr) markers_.push_back({position, marker});
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
    if (closed_) return;
    std::shared_ptr<VendorEvent> const marker = queue_->record();
    std::lock_guard const state(state_);
    markers_.push_back({submitted_.load(), marker});
  } catch (std::exception const&) {  // the next one will do
  }
}

bool Lane::poll() {
  check();
  if (is_over()) return true;
  if (!adopted_) {
    std::uint64_t const submitted = submitted_.load();
    try {
      if (queue_->done()) {
        reach(submitted);
        return is_over();
      }
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
    // An error is kept if no event has it: the vendor may not report it again.
    if (error != nullptr && is_ours && first.event.use_count() == 1 && error_ == nullptr) error_ = error;
  }
}

/// Note that everything up to here is complete, and destroy its operations.
void Lane::reach(std::uint64_t position) {
  std::vector<Kept> finished;
  ++destroying_;  // before others see that it is complete
  {
    std::lock_guard const state(state_);
    timeline_->reach(position);
    writes_.reach(position);
    while (!kept_.empty() && kept_.front().position <= position) {
      finished.push_back(std::move(kept_.front()));
      kept_.pop_front();
    }
  }
  finished.clear();
  if (--destroying_ == 0) destroying_.notify_all();
}

/// The same, for a caller who may free the memory next: operations that other threads are destroying are awaited.
void Lane::finish(std::uint64_t position) {
  if (timeline_->reached() < position) reach(position);
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
  queue_->synchronize();
  read_markers();
  finish(submitted);
  raise_error();
}

void Lane::drain() {
  if (!adopted_) return synchronize();
  check();
  for (;;) {
    std::shared_ptr<VendorEvent> last;
    {
      std::lock_guard const state(state_);
      if (!markers_.empty()) last = markers_.back().event;
    }
    if (last == nullptr) break;
    try {
      last->wait();
    } catch (std::exception const&) {  // `read_markers` gets the error once more
    }
    last = nullptr;
    read_markers();
  }
  finish(0);
  raise_error();
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
  if (attempt([&] { queue_->close(); }) && !adopted_) reach(submitted_.load());
  if (first != nullptr) std::rethrow_exception(first);
}

}  // namespace pinning
