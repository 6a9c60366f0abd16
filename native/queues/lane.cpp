// SPDX-License-Identifier: Apache-2.0
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <pinning/process.hpp>
#include <pinning/lane.hpp>
#include <utility>

namespace pinning {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t poll_every = 64;  // operations
constexpr std::chrono::microseconds spin{100};  // for which a waiting thread polls before it records an event and sleeps

// CU_STREAM_LEGACY and CU_STREAM_PER_THREAD, hipStreamLegacy and hipStreamPerThread; 0 means the legacy one, too.
constexpr std::uintptr_t legacy = 1, of_each_thread = 2;

constexpr char const* no_questions = "cannot be asked or waited for";

thread_local bool destroying = false;  // whether this thread destroys operations
thread_local std::vector<Lane const*> asked;  // those whose vendor this thread is asking
thread_local VendorQueue const* caller = nullptr;  // which calls the function that this thread runs

std::string vendor_name(VendorDevice const& device) { return device.name().substr(0, device.name().find(':')); }

}  // namespace

StreamKey key_of_stream(VendorDevice const& device, std::uintptr_t handle) {
  static std::atomic<std::uint64_t> threads = 0;
  thread_local std::uint64_t const number = ++threads;  // no number is used twice
  if (handle != legacy && handle != of_each_thread) return {handle, 0};
  auto const vendor = vendor_name(device);
  if (vendor != "cuda" && vendor != "hip") return {handle, 0};
  return {handle == legacy ? 0 : handle, handle == of_each_thread ? number : 0};
}

// ---- making a lane ----

Lane::Lane(VendorDevice& device, std::shared_ptr<VendorQueue> queue, bool ordered, bool adopted)
    : device_(device),
      vendor_(vendor_name(device)),
      queue_(std::move(queue)),
      thread_(adopted ? key_of_stream(device, queue_->handle()).thread : 0),
      adopted_(adopted),
      made_in_(generation()),
      timeline_(std::make_shared<Timeline>(ordered)),
      shared_(adopted) {}

std::shared_ptr<Lane> Lane::make(VendorDevice& device, bool ordered) {
  return make(device, device.make_queue(), ordered, false);
}

std::shared_ptr<Lane> Lane::make(VendorDevice& device, std::shared_ptr<VendorQueue> queue, bool ordered, bool adopted) {
  std::shared_ptr<Lane> lane(new Lane(device, std::move(queue), ordered, adopted));
  lane->timeline_->lane = lane;
  return lane;
}

Lane::~Lane() {
  if (is_parents(made_in_)) {  // of a parent process, whose threads are missing here
    new std::shared_ptr<VendorQueue>(std::move(queue_));
    new std::list<Marker>(std::move(markers_));
  }
  for (Kept& each : kept_) each.operation.release();
}

void Lane::check() const {
  if (!is_parents(made_in_)) return;
  throw Unavailable("this queue belongs to the process that made it, and this is a fork of it: make queues after the fork");
}

VendorQueue const* Lane::set_caller(VendorQueue const* queue) noexcept { return std::exchange(caller, queue); }

/// Throw Unsupported if a wait would be for this very thread.
void Lane::check_wait() const {
  if (caller != queue_.get()) return;  // that this lane looks over says nothing: the function may run before it is counted
  throw Unsupported("a function that a queue of " + device_.name() + " calls cannot wait for work of that queue, which waits "
                    "for the function: wait outside of it");
}

/// Whether a call of the vendor with this stream means the one that the lane is for.
bool Lane::is_threads_own() const { return thread_ == 0 || thread_ == key_of_stream(device_, of_each_thread).thread; }

void Lane::check_thread() const {
  if (is_threads_own()) return;
  throw Unsupported("this queue is over the default stream of another thread, and each thread has its own: adopt it in the "
                    "thread that uses it");
}

// ---- the lock ----

void Lane::lock() {
  submitting_.lock();
  if (++depth_ == 1) owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
}

bool Lane::try_lock() {
  if (!submitting_.try_lock()) return false;
  if (++depth_ == 1) owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  return true;
}

void Lane::unlock() noexcept {
  if (--depth_ == 0) {
    complete_.store(submitted_.load(std::memory_order_relaxed), std::memory_order_release);
    owner_.store(std::thread::id(), std::memory_order_relaxed);
  }
  submitting_.unlock();
}

void Lane::check_open() const {
  check_thread();
  if (closing_ || closed_) throw Closed("the queue was closed meanwhile; nothing can be submitted to it");
}

// ---- submission ----

bool Lane::may_write(Span range, Events const& after) {
  check();
  if (std::any_of(after.begin(), after.end(), [](Event const* each) { return !each->is_over(); })) return true;
  auto const meet = [&] {
    std::lock_guard const state(state_);
    return writes_.meet(timeline_->reached(), range.start, range.end - range.start);
  };
  if (!meet()) return false;
  if (capture() != 0) return true;  // a question to the vendor may end the capture
  poll();
  return meet();
}

std::uint64_t Lane::capture() { return shared_ && !closed_ && is_threads_own() ? queue_->capture() : 0; }

void Lane::check_uncaptured(char const* what) {
  if (capture() == 0) return;
  throw GraphCapture("this queue's stream is being captured into a graph, and " + std::string(what) +
                     ": do that before the capture, after it, or in another queue");
}

Event Lane::submit(std::unique_ptr<CopyOperation> copy, Events const& after) {
  check_uncaptured("a copy that can be waited for cannot stand in one (record the vendor's own copies of locked memory)");
  std::optional<How> how;
  Event event = put(std::move(copy), after, &how);
  event.how_ = how;
  poll_now_and_then(event.position_);
  return event;
}

Event Lane::submit_uncaptured(std::unique_ptr<Operation> operation, Events const& after) {
  Event event = put(std::move(operation), after, nullptr);
  poll_now_and_then(event.position_);
  return event;
}

bool Lane::submit_at_once(std::unique_ptr<Operation>& operation, Event& event) {
  std::list<Kept> kept;  // destroyed without the lock
  bool const polls = submitted_.load(std::memory_order_relaxed) + 1 - polled_.load(std::memory_order_relaxed) >= poll_every;
  if (shared_ || polls || !try_lock()) return false;
  std::lock_guard<Lane> const submitting(*this, std::adopt_lock);
  if (closing_ || closed_ || depth_ != 1) return false;
  if (operation != nullptr) {
    auto const last = last_if_needed();
    if (last != nullptr && recorded(*last) == nullptr) return false;
    kept.push_back({0, std::move(operation)});
  }
  event = submit_locked(kept, {}, nullptr);
  return true;
}

Event Lane::put(std::unique_ptr<Operation> operation, Events const& after, std::optional<How>* how) {
  check();
  VendorEvents awaited;  // recorded before this lane is locked
  for (Event* each : after) {
    Lane* const other = each->lane();
    if (other == nullptr || other == this) continue;
    other->check();
    if (other->vendor_ != vendor_) refuse_event(vendor_);
    if (!each->is_over()) awaited.push_back(other->record(*each->place_));
  }
  std::list<Kept> kept;  // destroyed, if the submission fails, without the lock
  if (operation != nullptr) kept.push_back({0, std::move(operation)});
  std::lock_guard<Lane> const submitting(*this);
  check_open();
  return submit_locked(kept, awaited, how);
}

/// (locked) Submit the operation in the list, if there is one, and take it.
Event Lane::submit_locked(std::list<Kept>& kept, VendorEvents const& awaited, std::optional<How>* how) {
  // Made before anything is submitted, so that nothing that is in progress is lost for want of memory.
  std::list<Marker> marker;
  if (shared_) marker.emplace_back();
  Operation* const submitted = kept.empty() ? nullptr : kept.front().operation.get();
  std::shared_ptr<Place> place;
  bool const alone = depth_ == 1;  // not in the middle of another submission
  std::shared_ptr<VendorEvent> recorded;
  std::shared_ptr<Place> last = begin(submitted, !awaited.empty(), recorded);
  // Not where the vendor's event is made already: others may have submitted since, and it would tell an earlier time.
  if (last != nullptr && recorded == nullptr && submitted == nullptr && awaited.empty() && alone) {
    place = std::move(last);
  } else {
    place = std::make_shared<Place>(shared_from_this());
    if (last != nullptr && recorded == nullptr) record_now(*last);  // before more is submitted
    recorded.reset();
    for (auto const& each : awaited) queue_->wait(*each);
    try {
      if (submitted != nullptr) submitted->submit(*queue_);
    } catch (std::exception const&) {
      refuse(kept, marker, false);
      throw;
    } catch (...) {  // Ctrl-C in a vendor's call in Python, which may have submitted it
      refuse(kept, marker, true);
      throw;
    }
    if (how != nullptr) {
      auto const& copy = static_cast<CopyOperation const&>(*submitted);
      *how = How{copy.path(), copy.reason()};
    }
  }
  std::exception_ptr interrupt;
  if (recorded == nullptr && (shared_ || !alone)) {
    try {
      recorded = queue_->record();
    } catch (std::exception const&) {  // the work is submitted; the event is made when needed, as in other queues
    } catch (...) {
      interrupt = std::current_exception();
    }
  }
  std::uint64_t const position = end(kept, marker, place, std::move(recorded));
  if (interrupt != nullptr) std::rethrow_exception(interrupt);
  return Event(std::move(place), position);
}

/// The last place, if an event is left that is there.
std::shared_ptr<Place> Lane::last_if_needed() {
  std::lock_guard const state(state_);
  return last_.lock();
}

/// (state_)
bool Lane::is_last(std::shared_ptr<Place> const& place) const noexcept {
  return !last_.owner_before(place) && !place.owner_before(last_);
}

/// (locked) Make the vendor's event of the last place, if it may still be needed.
void Lane::record_last() {
  auto const place = last_if_needed();
  if (place != nullptr && recorded(*place) == nullptr) record_now(*place);
}

/// (locked) Make the vendor's event of the last place.
std::shared_ptr<VendorEvent> Lane::record_now(Place& place) {
  check_thread();
  std::shared_ptr<VendorEvent> vendor = queue_->record();
  std::lock_guard const state(state_);
  return place.vendor_ = std::move(vendor);
}

/// (locked) Note what the next operation may write. Returns the last place, if an event is left that is there, and its
/// vendor's event.
std::shared_ptr<Place> Lane::begin(Operation const* operation, bool waits, std::shared_ptr<VendorEvent>& recorded) {
  std::uint64_t const position = submitted_.load(std::memory_order_relaxed) + 1;
  std::lock_guard const state(state_);
  if (waits) waiting_ = position;
  // What it waits for may write anything. So may the operations in the middle of which it is submitted: their positions
  // come after its own.
  bool const unknown = waits || depth_ > 1 || (operation != nullptr && operation->writes_unknown());
  if (unknown) writes_.add_unknown(position + depth_ - 1);
  if (operation != nullptr) {
    auto const [start, end] = operation->written();
    if (start != end) writes_.add(position, start, end - start);
  }
  std::shared_ptr<Place> last = last_.lock();
  if (last != nullptr) recorded = last->vendor_;
  return last;
}

/// (locked) Keep what was submitted, and the marker behind it; each list has one or none. Returns the position.
std::uint64_t Lane::end(std::list<Kept>& kept, std::list<Marker>& marker, std::shared_ptr<Place> const& place,
                        std::shared_ptr<VendorEvent> recorded) noexcept {
  std::lock_guard const state(state_);
  std::uint64_t const position = submitted_.load(std::memory_order_relaxed) + 1;
  for (Kept& each : kept) each.position = position;
  if (!kept.empty() && kept.front().operation->keeps_any()) kept_.splice(kept_.end(), kept);
  if (shared_ && recorded != nullptr && !marker.empty()) {
    marker.front() = {position, recorded};
    markers_.splice(markers_.end(), marker);
  }
  if (recorded != nullptr && place != nullptr) place->vendor_.swap(recorded);
  last_ = place;
  submitted_.store(position, std::memory_order_release);
  return position;
}

/// (locked) The vendor has refused a part of an operation, or may have submitted it before it was interrupted.
void Lane::refuse(std::list<Kept>& kept, std::list<Marker>& marker, bool interrupted) noexcept {
  std::list<Kept> none_kept;  // the caller destroys `kept`, without the lock
  bool const keeps = !kept.empty() && (interrupted || kept.front().operation->outlasts_refusal());
  std::shared_ptr<VendorEvent> recorded;
  try {
    if (shared_) recorded = queue_->record();
  } catch (...) {  // the next marker shows the progress
  }
  end(keeps ? kept : none_kept, marker, nullptr, std::move(recorded));  // later events do not share the last place
}

std::shared_ptr<VendorEvent> Lane::recorded(Place const& place) {
  std::lock_guard const state(state_);
  return place.vendor_;
}

/// The vendor's event of a place, made now if there is none yet.
std::shared_ptr<VendorEvent> Lane::record(Place& place) {
  check();
  for (;;) {
    if (auto known = recorded(place)) return known;
    // A submitting thread makes it first, and may then block, with the lock, in a copy that waits for this thread.
    if (try_lock()) break;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  std::lock_guard<Lane> const submitting(*this, std::adopt_lock);
  if (auto known = recorded(place)) return known;
  if (closed_) throw Closed("the queue is closed, and this event was not recorded before");
  check_uncaptured("an event cannot stand in a graph");
  return record_now(place);
}

void Lane::share() {
  std::lock_guard<Lane> const submitting(*this);
  if (shared_) return;
  record_last();
  mark_end();
  shared_ = true;
}

// ---- progress ----

void Lane::poll_now_and_then(std::uint64_t position) {
  if (position - polled_.load(std::memory_order_relaxed) < poll_every) return;
  polled_.store(position, std::memory_order_relaxed);
  if (poll() || shared_ || !needs_progress()) return;
  // Without an event only a wait shows the progress of a queue that is never idle.
  std::lock_guard<Lane> const submitting(*this);
  try {
    if (!closed_) mark_end();
  } catch (std::exception const&) {
    blame(std::current_exception());
  }
}

/// Whether anything depends on knowing what is complete.
bool Lane::needs_progress() {
  std::lock_guard const state(state_);
  return !kept_.empty() || !timeline_->ordered() || waiting_ > timeline_->reached();
}

/// (locked) Add a marker behind all that was submitted.
void Lane::mark_end() {
  check_thread();
  std::list<Marker> marker(1);
  marker.front() = {submitted_.load(), queue_->record()};
  std::lock_guard const state(state_);
  markers_.splice(markers_.end(), marker);
}

/// Whether the vendor has done all; if `block`, wait until it has. Meanwhile the queue is not given back.
bool Lane::ask(bool block, Meanwhile meanwhile) {
  check_thread();
  check_uncaptured(no_questions);
  ++asking_;
  asked.push_back(this);
  struct Asked {
    Lane& lane;
    ~Asked() {
      asked.erase(std::find(asked.rbegin(), asked.rend(), &lane).base() - 1);
      --lane.asking_;
    }
  } const during{*this};
  try {
    bool over = true;
    if (!block) over = queue_->done();
    for (std::uint64_t until = 0; block; ) {
      bool const is_over = queue_->synchronize_a_while(until);
      if (meanwhile != nullptr) meanwhile();
      if (is_over) break;
    }
    refusals_ = 0;
    return over;
  } catch (std::exception const&) {
    if (++refusals_ == lost) abandon_all();
    blame(std::current_exception());
    throw;
  }
}

/// The device is lost: nothing must wait for it.
void Lane::abandon_all() {
  std::lock_guard const state(state_);
  for (Kept& each : kept_) each.operation->abandon();
}

/// Store an error that the vendor has reported, because it may not report it again.
void Lane::blame(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (ForeignError& foreign) {
    foreign.forget_way();
  } catch (...) {  // it keeps nothing
  }
  auto const place = last_if_needed();  // destroyed without the lock
  std::lock_guard const state(state_);
  if (place != nullptr && place->vendor_ == nullptr && is_last(place)) {
    place->error_ = std::move(error);
    last_.reset();  // later events do not get this error
  } else if (error_ == nullptr) {
    error_ = std::move(error);
  }
}

/// Ask whether all is over, as long as nothing is submitted after this place; for a while if `block`. A wait for all
/// would include what others submit meanwhile, which may in turn wait for this thread.
void Lane::ask_for_all(std::shared_ptr<Place> const& place, bool block) {
  auto const end = Clock::now() + spin;
  auto const none_after = [&] {
    std::lock_guard const state(state_);
    return is_last(place);
  };
  try {
    while (!closed_ && none_after()) {
      std::uint64_t const submitted = complete_;
      if (ask(false)) return reach(submitted);
      if (!block || Clock::now() >= end) return;
      sched_yield();
    }
  } catch (std::exception const&) {  // the place has the error
  }
}

bool Lane::poll() {
  check();
  std::uint64_t const submitted = complete_;
  if (!closed_ && (timeline_->reached() < submitted || keeps_any())) {
    try {
      if (!shared_ && ask(false)) {
        std::list<Marker> passed;
        {
          std::lock_guard const state(state_);
          auto const is_later = [submitted](Marker const& each) { return each.position > submitted; };
          passed.splice(passed.end(), markers_, markers_.begin(),
                        std::find_if(markers_.begin(), markers_.end(), is_later));
        }
        reach(submitted);
      } else {
        read_markers();
      }
    } catch (std::exception const&) {  // the error is kept until the event or the queue is asked
      return false;
    }
  }
  return is_over() && !keeps_any();
}

bool Lane::done() {
  if (shared_ && !closed_) check_uncaptured(no_questions);
  bool over = poll();
  if (shared_ && !closed_ && is_threads_own()) {  // what others have submitted counts as well
    std::uint64_t const submitted = complete_;
    try {
      over = ask(false);
      if (over) reach(submitted);
    } catch (std::exception const&) {  // the error is kept
    }
  }
  raise_error();
  return over;
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
    } catch (std::exception const&) {
      error = std::current_exception();  // a later marker, or the queue itself, will show the progress
    }
    bool is_ours = false;  // else another thread has asked meanwhile, and has the answer
    {
      std::lock_guard const state(state_);
      is_ours = !markers_.empty() && markers_.front().event == first.event;
      if (is_ours) markers_.pop_front();
    }
    if (error != nullptr && is_ours) blame(error);
  }
}

void Lane::ask_last() {
  check();
  auto const place = last_if_needed();  // destroyed without the lock
  std::shared_ptr<VendorEvent> last;
  std::uint64_t position = 0;
  if (place != nullptr) {
    std::lock_guard const state(state_);
    if (is_last(place)) last = place->vendor_, position = submitted_;
  }
  if (last != nullptr && timeline_->reached() < position && last->done()) reach(position);
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

bool Lane::keeps_any() {
  std::lock_guard const state(state_);
  return !kept_.empty();
}

std::vector<std::uint64_t> Lane::keeping(void const* object) {
  std::vector<std::uint64_t> positions;
  std::lock_guard const state(state_);
  for (Kept const& each : kept_) {
    if (each.operation->keeps(object)) positions.push_back(each.position);
  }
  return positions;
}

bool Lane::is_silent() {
  {
    std::lock_guard const state(state_);
    if (!shared_ || !markers_.empty()) return false;
  }
  if (adopted_ || closed_ || is_over() || !try_lock()) return true;  // an owner may have destroyed its stream
  std::lock_guard<Lane> const submitting(*this, std::adopt_lock);
  try {
    if (capture() == 0) return mark_end(), false;
  } catch (std::exception const&) {
  }
  return true;
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

void Lane::synchronize(Meanwhile meanwhile) {
  check();
  check_wait();
  check_uncaptured(no_questions);
  if (!is_threads_own()) return drain(meanwhile);
  std::uint64_t const submitted = complete_;
  if (!closed_) {
    try {
      ask(true, meanwhile);
    } catch (std::exception const&) {
      read_markers();  // of the same failure, as far as they have one
      raise_error();   // the first one: an earlier one, or this one, unless an event has it
      throw;
    }
    read_markers();
    finish(submitted);
  }
  raise_error();
}

void Lane::drain(Meanwhile meanwhile) {
  check();
  check_wait();
  if (!adopted_) return synchronize(meanwhile);
  std::uint64_t const upto = submitted_.load();
  if (timeline_->reached() < upto && last_marker(upto).position < upto) {  // the vendor has refused to record it
    try {
      std::lock_guard<Lane> const submitting(*this);
      mark_end();
    } catch (std::exception const&) {
      check_thread();
      return synchronize(meanwhile);
    }
  }
  for (Marker last; (last = last_marker(upto)).event != nullptr; read_markers()) {
    try {
      while (!last.event->wait_a_while()) {
        if (meanwhile != nullptr) meanwhile();
      }
    } catch (std::exception const&) {  // `read_markers` gets the error once more
    }
  }
  finish(0);
  raise_error();
}

void Lane::outlast(Meanwhile meanwhile) {
  check();
  check_wait();
  check_uncaptured(no_questions);
  try {
    drain(meanwhile);
  } catch (std::exception const&) {
    blame(std::current_exception());
  }
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

void Lane::close(Meanwhile meanwhile) {
  check();
  if (closed_) return;
  check_wait();
  check_uncaptured(no_questions);
  {
    std::lock_guard<Lane> const submitting(*this);  // waits for a submission in progress
    if (closed_) return;
    closing_ = true;
  }
  struct Closing {
    Lane& lane;
    ~Closing() {
      std::lock_guard<Lane> const submitting(lane);
      lane.closing_ = false;
    }
  };
  std::exception_ptr first;
  auto const attempt = [&](auto&& step) {
    try {
      step();
      return true;
    } catch (std::exception const&) {
      if (first == nullptr) first = std::current_exception();
      return false;
    }
  };
  {
    Closing const until_then{*this};
    // The first error may be that of the work.
    if (!attempt([&] { drain(meanwhile); }) && !attempt([&] { drain(meanwhile); })) refusals_ = lost;
    attempt([&] { give_back(); });
  }
  if (first != nullptr) std::rethrow_exception(first);
}

void Lane::give_back() {
  std::list<Marker> markers;
  std::exception_ptr refused;
  {
    std::lock_guard<Lane> const submitting(*this);
    if (closed_) return;
    try {
      record_last();
    } catch (std::exception const&) {  // the device is lost, as the event itself will report
    }
    closed_ = true;  // so that no thread begins to ask
    while (asking_ != 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
    try {
      queue_->close();
    } catch (...) {
      refused = std::current_exception();
      closed_ = is_lost();
    }
    if (closed_) {
      std::lock_guard const state(state_);
      markers.swap(markers_);
    }
  }
  if (closed_) {
    if (is_over() || is_lost()) {
      finish(submitted_);
    } else {  // the end of its work is not seen any more: what is kept, or was freed after it, may be in use for ever
      std::lock_guard const state(state_);
      for (Kept& each : kept_) each.operation.release();
      kept_.clear();
    }
  }
  if (refused != nullptr) std::rethrow_exception(refused);
}

bool Lane::is_in_call() const noexcept {
  return owner_.load() == std::this_thread::get_id() || std::find(asked.begin(), asked.end(), this) != asked.end();
}

}  // namespace pinning
