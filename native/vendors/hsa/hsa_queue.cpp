// SPDX-License-Identifier: Apache-2.0
// Locks: `QueueThread::mutex_` guards submitted work, `Batch::mutex_` an error; each is taken last, for an insertion or
// a read.
#include "hsa_queue.hpp"

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <mutex>

#include "../host_work.hpp"
#include "../queue_thread.hpp"
#include "hsa_copies.hpp"

namespace pinning::hsa {

namespace {

using Clock = std::chrono::steady_clock;
using Start = std::function<void()>;

/// The work between two events of a queue; the second event reports its errors.
class Batch {
 public:
  /// Keeps an error, if it is the first.
  void fail(std::exception_ptr error) {
    std::lock_guard const guard(mutex_);
    if (!error_) error_ = std::move(error);
  }

  /// Throws the error, if there is one.
  void check() {
    std::exception_ptr error;
    {
      std::lock_guard const guard(mutex_);
      error = error_;
    }
    if (error) std::rethrow_exception(error);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
};

/// One item of work, over once its signal is at most 0. The destructor returns the signal to the spares.
class Work {
 public:
  /// `parts`: how often the signal is decremented, by each copy and by `start`.
  Work(Runtime const& runtime, std::shared_ptr<SpareSignals> spares, std::int64_t parts)
      : runtime_(runtime), spares_(std::move(spares)), signal(spares_->take(parts)) {}
  Work(Work const&) = delete;
  ~Work() { spares_->give(signal); }

  /// Whether it is over.
  bool over() { return seen(runtime_.hsa_signal_load_scacquire(signal)); }

  /// Whether it is over without a failure. Needs no batch.
  bool ended() const { return runtime_.hsa_signal_load_scacquire(signal) == 0; }

  /// Blocks until it is over; the runtime polls for a while, and then sleeps.
  void wait() {
    seen(runtime_.hsa_signal_wait_scacquire(signal, HSA_SIGNAL_CONDITION_LT, 1, UINT64_MAX, HSA_WAIT_STATE_BLOCKED));
  }

  /// Starts it. This counts as one part, so that its end is not seen before an exception of `start` is recorded.
  void start(Start const& start) noexcept {
    try {
      start();
    } catch (...) {
      batch->fail(std::current_exception());
    }
    runtime_.hsa_signal_subtract_screlease(signal, 1);
  }

  /// Blocks until it is over, and lets waiting engines continue: they wait for 0, and after a failure it is negative.
  void follow() {
    wait();
    runtime_.hsa_signal_store_screlease(signal, 0);
  }

  /// The time when it was first seen to be over.
  Clock::time_point time() const { return Clock::time_point(Clock::duration(time_)); }

 private:
  bool seen(std::int64_t value) {
    if (value > 0) return false;
    if (value < 0) batch->fail(std::make_exception_ptr(copy_failed(value)));
    Clock::rep unseen = 0;
    time_.compare_exchange_strong(unseen, Clock::now().time_since_epoch().count());
    return true;
  }

  Runtime const& runtime_;
  std::shared_ptr<SpareSignals> const spares_;
  std::atomic<Clock::rep> time_ = 0;

 public:
  Handle const signal;
  std::shared_ptr<Batch> batch;  // the queue's batch at submission; set before other threads see this
};

/// A point in a queue: the end of the last work submitted before it.
class Event : public VendorEvent {
 public:
  Event(Runtime const& runtime, std::shared_ptr<Work> work, std::shared_ptr<Batch> batch)
      : runtime_(runtime), work(std::move(work)), batch_(std::move(batch)) {}

  bool done() override {
    runtime_.started().check();
    if (work && !work->over()) return false;
    batch_->check();
    return true;
  }

  void wait() override {
    runtime_.started().check();
    if (work) work->wait();
    batch_->check();
  }

  /// By the host's clock, late by the time that a thread takes to see the points.
  double seconds_since(VendorEvent& earlier) override {
    Event& before = of_ours(earlier);
    return std::chrono::duration<double>(reached() - before.reached()).count();
  }

  static Event& of_ours(VendorEvent& event) { return event_cast<Event>(event, "HSA"); }

 private:
  Clock::time_point reached() {
    if (!done()) throw Unsupported("this event of an HSA queue is not reached, and so has no time: wait for it");
    return work ? std::max(made_, work->time()) : made_;
  }

  Runtime const& runtime_;

 public:
  std::shared_ptr<Work> const work;  // null if the queue had none

 private:
  std::shared_ptr<Batch> const batch_;
  Clock::time_point const made_ = Clock::now();
};

}  // namespace

/// Follows the work of a queue, in order, and executes or starts what cannot be left to the engines.
///
/// The runtime's own thread for this (hsa_amd_signal_async_handler) serves the whole process: a function that waits
/// there, as functions in queues may, delays all other queues.
class HsaQueueThread : public QueueThread {
 public:
  /// Its thread keeps it alive. Throws VendorError.
  static std::shared_ptr<HsaQueueThread> make() {
    auto queue_thread = std::make_shared<HsaQueueThread>();
    start("pinning HSA", [thread = queue_thread] {
      thread->run();
      thread->forget();
    });
    return queue_thread;
  }

  /// Whether all work has been started, so that more may be started without this thread.
  bool caught_up() {
    std::lock_guard const guard(mutex_);
    return to_start_ == 0;
  }

  /// The last work of the queue; null if there was none, or after the thread has ended.
  std::shared_ptr<Work> tail() {
    std::lock_guard const guard(mutex_);
    return tail_;
  }

  /// The thread's job for `work`: starts it after all earlier work is over, unless it has been started, and follows it.
  std::unique_ptr<Job> job_of(std::shared_ptr<Work> const& work, Start start = nullptr) {
    return job([this, work, start = std::move(start)]() mutable {
      if (start) {
        work->start(start);
        start = nullptr;
        std::lock_guard const guard(mutex_);
        --to_start_;
      }
      work->follow();
      followed_ = std::move(work);  // the earlier work's signal may be reused: no engine waits for it now
    });
  }

  /// Appends the job of `work`. Cannot fail.
  void put(std::shared_ptr<Work> const& work, std::unique_ptr<Job> job, bool started) noexcept {
    auto before = work;  // becomes the old tail, whose destructor calls the runtime, so not under the mutex
    QueueThread::put(std::move(job), [&] {
      work->batch = batch_;
      tail_.swap(before);
      if (!started) ++to_start_;
    });
  }

  /// An event at the end of all work so far. Only this event reports that work's errors.
  std::unique_ptr<Event> record(Runtime const& runtime) {
    auto batch = std::make_shared<Batch>();
    std::shared_ptr<Work> work;
    {
      std::lock_guard const guard(mutex_);
      work = tail_;
      batch_.swap(batch);
    }
    return std::make_unique<Event>(runtime, std::move(work), std::move(batch));
  }

  /// Like `record`, but the next event reports these errors too.
  std::unique_ptr<Event> now(Runtime const& runtime) {
    std::lock_guard const guard(mutex_);
    return std::make_unique<Event>(runtime, tail_, batch_);
  }

 private:
  void forget() {
    std::shared_ptr<Work> last;
    followed_.reset();
    std::lock_guard const guard(mutex_);
    last.swap(tail_);
  }

  std::shared_ptr<Work> tail_, followed_;
  std::shared_ptr<Batch> batch_ = std::make_shared<Batch>();
  std::size_t to_start_ = 0;
};

void wait_for_all(HsaQueueThread& thread) {
  if (auto const tail = thread.tail()) tail->wait();
}

namespace {

class Queue : public VendorQueue {
 public:
  Queue(Runtime const& runtime, int gpu, std::shared_ptr<HsaQueueThread> thread)
      : runtime_(runtime), gpu_(gpu), thread_(std::move(thread)) {}
  ~Queue() override {
    if (!runtime_.started().is_parents()) end();
  }

  std::uintptr_t handle() const noexcept override { return 0; }

  /// Uses hsa_amd_memory_async_copy; hsa_memory_copy if a GPU cannot reach an end or none has one.
  void copy(Address dst, Address src, std::uint64_t size) override { copy_rows({dst, 0, src, 0, size, 1}); }

  /// Uses hsa_amd_memory_async_copy_rect if addresses and pitches are multiples of 4; else `copy` of each row.
  void copy_2d(Address dst, std::uint64_t dst_pitch, Address src, std::uint64_t src_pitch, std::uint64_t width,
               std::uint64_t height) override {
    copy_rows({dst, dst_pitch, src, src_pitch, width, height});
  }

  /// Uses hsa_amd_memory_fill for device memory; the queue's thread fills host memory.
  void fill(Address ptr, std::uint32_t value, unsigned bytes, std::uint64_t count) override {
    check_open();
    auto const range = range_around(runtime_, ptr);
    if (range && range->gpu) {
      in_turn([=, &runtime = runtime_] { fill_device(runtime, ptr, value, bytes, count); });
    } else {
      auto* const host = reinterpret_cast<char*>(range ? range->host + range->offset(ptr) : ptr);
      in_turn([=] { fill_bytes(host, value, bytes, count); });
    }
  }

  /// Runs on the queue's thread.
  void call(void (*function)(void*), void* argument) override {
    in_turn([=] { function(argument); });
  }

  bool waits_for_values() const noexcept override { return true; }

  /// The queue's thread polls the word, at growing intervals: engines wait for signals only.
  void wait_value(Address address, std::uint32_t value) override {
    in_turn([=] { wait_for_word(address, value); });
  }

  void write_value(Address address, std::uint32_t value) override {
    in_turn([=] { write_word(address, value); });
  }

  /// Makes no call of the runtime.
  std::unique_ptr<VendorEvent> record() override {
    check_open();
    return thread_->record(runtime_);
  }

  /// If the event is not reached, the queue's thread waits for it.
  void wait(VendorEvent& event) override {
    check_open();
    auto const work = Event::of_ours(event).work;
    if (work && work != thread_->tail() && !work->over()) {
      in_turn([work] { work->wait(); });
    }
  }

  bool done() override {
    check_open();
    return thread_->now(runtime_)->done();
  }

  void synchronize() override { record()->wait(); }

  /// The thread ends when all work is over.
  void close() override {
    runtime_.started().check();
    end();
  }

 private:
  void end() noexcept {
    if (closed_.exchange(true)) return;
    thread_->stop();
    spares_->close();
  }

  void copy_rows(Rows const& rows) {
    check_open();
    if (rows.width == 0 || rows.height == 0) return;
    auto const to = reach(runtime_, rows.dst, rows.span(rows.dst_pitch), gpu_);
    auto const from = reach(runtime_, rows.src, rows.span(rows.src_pitch), gpu_);
    if (!to || !from || !(to->is_gpu || from->is_gpu)) {
      return in_turn([=, &runtime = runtime_] { copy_by_runtime(runtime, rows); });
    }
    auto const height = static_cast<std::int64_t>(rows.height);
    if (!thread_->caught_up()) {
      auto work = new_work(height + 1);
      return start_later(work, [=, &runtime = runtime_, signal = work->signal] {
        begin(runtime, rows, *to, *from, signal, std::nullopt);
      });
    }
    auto const tail = thread_->tail();
    std::optional<Handle> after;
    if (tail && !tail->over()) after = tail->signal;
    auto const work = new_work(height);
    auto job = thread_->job_of(work);
    try {
      begin(runtime_, rows, *to, *from, work->signal, after);
    } catch (...) {
      // The rows before the refused one are under way. Without such rows it is over, perhaps before earlier work: as the
      // queue's last work it would hide that from `synchronize`.
      if (!work->ended()) thread_->put(work, std::move(job), true);
      throw;
    }
    thread_->put(work, std::move(job), true);
  }

  void in_turn(Start start) {
    check_open();
    start_later(new_work(1), std::move(start));
  }

  void start_later(std::shared_ptr<Work> const& work, Start start) {
    thread_->put(work, thread_->job_of(work, std::move(start)), false);
  }

  std::shared_ptr<Work> new_work(std::int64_t parts) { return std::make_shared<Work>(runtime_, spares_, parts); }

  void check_open() {
    runtime_.started().check();
    if (closed_) throw Unsupported("this HSA queue is closed: make another");
  }

  Runtime const& runtime_;
  int const gpu_;
  std::shared_ptr<HsaQueueThread> const thread_;
  std::shared_ptr<SpareSignals> const spares_ = std::make_shared<SpareSignals>(runtime_);
  std::atomic<bool> closed_ = false;
};

}  // namespace

std::pair<std::unique_ptr<VendorQueue>, std::shared_ptr<HsaQueueThread>> make_queue(Runtime const& runtime, int gpu) {
  auto thread = HsaQueueThread::make();
  try {
    return {std::make_unique<Queue>(runtime, gpu, thread), thread};
  } catch (...) {
    thread->stop();
    throw;
  }
}

}  // namespace pinning::hsa
