// SPDX-License-Identifier: Apache-2.0
// Locks: `Worker::mutex_` guards what is submitted, `Batch::mutex_` an error; each is taken last, for an insert or a look.
#include "hsa_queue.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <list>
#include <mutex>

#include "../../base/system_call.hpp"
#include "../host_work.hpp"
#include "hsa_copies.hpp"

namespace pinning::hsa {

namespace {

using Clock = std::chrono::steady_clock;
using Start = std::function<void()>;

/// The work between two events of a queue. The second one tells what has failed.
class Batch {
 public:
  /// Keeps an error, if it is the first.
  void fail(std::exception_ptr error) {
    std::lock_guard const guard(mutex_);
    if (!error_) error_ = std::move(error);
  }

  /// Throws what has failed, if anything has.
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

/// One piece of work, over once its signal is not above 0. The signal goes back to the spares when this is gone.
class Work {
 public:
  /// `parts`: how often the signal is counted down, by each copy and by `start`.
  Work(Runtime const& runtime, std::shared_ptr<SpareSignals> spares, std::int64_t parts)
      : runtime_(runtime), spares_(std::move(spares)), signal(spares_->take(parts)) {}
  Work(Work const&) = delete;
  ~Work() { spares_->give(signal); }

  /// Whether it is over.
  bool over() { return seen(runtime_.hsa_signal_load_scacquire(signal)); }

  /// Blocks until it is over; the runtime asks for a while, and then sleeps.
  void wait() {
    seen(runtime_.hsa_signal_wait_scacquire(signal, HSA_SIGNAL_CONDITION_LT, 1, UINT64_MAX, HSA_WAIT_STATE_BLOCKED));
  }

  /// Starts it. One part of it is this, so that nobody sees the end before what it throws is known.
  void start(Start const& start) noexcept {
    try {
      start();
    } catch (...) {
      batch->fail(std::current_exception());
    }
    runtime_.hsa_signal_subtract_screlease(signal, 1);
  }

  /// Blocks until it is over, and lets the engines go on: they wait for 0, and a failure is below.
  void follow() {
    wait();
    runtime_.hsa_signal_store_screlease(signal, 0);
  }

  /// When somebody first saw that it was over.
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
  std::shared_ptr<Batch> batch;  // that of its queue at the time; set before anybody else sees this
};

/// A point in a queue: the end of its last work when this was made.
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

  /// By the host's clock, late by what it takes a thread to see the points.
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
  std::shared_ptr<Work> const work;  // none where the queue had none

 private:
  std::shared_ptr<Batch> const batch_;
  Clock::time_point const made_ = Clock::now();
};

}  // namespace

/// A thread that follows the work of a queue, in order, and does or begins what cannot be left to the engines.
///
/// The runtime's own thread for such things (hsa_amd_signal_async_handler) is one for the whole process: a function that
/// waits there, as those of queues may, stops everybody's.
class Worker {
 public:
  /// Work, and how to start it where it has not been started.
  struct Entry {
    std::shared_ptr<Work> work;
    Start start;
  };
  using Entries = std::list<Entry>;

  /// Its thread keeps it. Throws VendorError.
  static std::shared_ptr<Worker> make() {
    auto worker = std::make_shared<Worker>();
    if (int const code = start_thread("pinning HSA", [worker] { worker->run(); }); code != 0) {
      throw VendorError(failed_call("pthread_create", code, "there is no thread for a queue to be had; close queues that "
                                                            "are idle"));
    }
    return worker;
  }

  /// Whether all work has been started, so that more may be, without this thread.
  bool caught_up() {
    std::lock_guard const guard(mutex_);
    return to_start_ == 0;
  }

  /// The last work of the queue; none also when this has ended.
  std::shared_ptr<Work> tail() {
    std::lock_guard const guard(mutex_);
    return tail_;
  }

  /// Takes the one entry of a list, with what is to be started when all before it is over. Nothing can fail.
  void put(Entries entry) noexcept {
    std::shared_ptr<Work> before;  // which may be the last to have it, and its destructor calls the runtime
    {
      std::lock_guard const guard(mutex_);
      entry.front().work->batch = batch_;
      before = std::exchange(tail_, entry.front().work);
      if (entry.front().start) ++to_start_;
      entries_.splice(entries_.end(), entry);
    }
    news_.notify_one();
  }

  /// The end of all work so far, of which the next event will tell nothing more.
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

  /// As `record`, but of which the next event will tell too.
  std::unique_ptr<Event> now(Runtime const& runtime) {
    std::lock_guard const guard(mutex_);
    return std::make_unique<Event>(runtime, tail_, batch_);
  }

  /// Ends the thread when all work is over. Any destructor may call it.
  void stop() noexcept {
    {
      std::lock_guard const guard(mutex_);
      stopped_ = true;
    }
    news_.notify_one();
  }

 private:
  void run() {
    std::shared_ptr<Work> before;
    for (Entries entry = next(); !entry.empty(); entry = next()) {
      auto& [work, start] = entry.front();
      if (start) {
        work->start(start);
        start = nullptr;
        std::lock_guard const guard(mutex_);
        --to_start_;
      }
      work->follow();
      before = std::move(work);  // only now is nobody left who waits for the signal of the one before: it may be set anew
    }
    std::shared_ptr<Work> last;
    std::lock_guard const guard(mutex_);
    last.swap(tail_);
  }

  /// The next entry, alone; none once it is stopped and has no more.
  Entries next() {
    Entries one;
    std::unique_lock guard(mutex_);
    news_.wait(guard, [&] { return stopped_ || !entries_.empty(); });
    if (!entries_.empty()) one.splice(one.end(), entries_, entries_.begin());
    return one;
  }

  std::mutex mutex_;
  std::condition_variable news_;
  Entries entries_;
  std::shared_ptr<Work> tail_;
  std::shared_ptr<Batch> batch_ = std::make_shared<Batch>();
  std::size_t to_start_ = 0;
  bool stopped_ = false;
};

void wait_for_all(Worker& worker) {
  if (auto const tail = worker.tail()) tail->wait();
}

namespace {

class Queue : public VendorQueue {
 public:
  Queue(Runtime const& runtime, int gpu, std::shared_ptr<Worker> worker)
      : runtime_(runtime), gpu_(gpu), worker_(std::move(worker)) {}
  ~Queue() override {
    if (!runtime_.started().elsewhere()) end();
  }

  std::uintptr_t handle() const noexcept override { return 0; }

  /// hsa_amd_memory_async_copy; hsa_memory_copy where no GPU reaches an end, or none has one.
  void copy(Address dst, Address src, std::uint64_t size) override { copy_rows({dst, 0, src, 0, size, 1}); }

  /// hsa_amd_memory_async_copy_rect, of addresses and pitches that are multiples of 4; else as `copy`, by rows.
  void copy_2d(Address dst, std::uint64_t dst_pitch, Address src, std::uint64_t src_pitch, std::uint64_t width,
               std::uint64_t height) override {
    copy_rows({dst, dst_pitch, src, src_pitch, width, height});
  }

  /// hsa_amd_memory_fill, of device memory.
  void fill(Address ptr, std::uint32_t value, unsigned bytes, std::uint64_t count) override {
    check_open();
    auto const found = range_around(runtime_, ptr);
    if (found && found->gpu) {
      in_turn([=, &runtime = runtime_] { fill_device(runtime, ptr, value, bytes, count); });
    } else {
      auto* const host = reinterpret_cast<char*>(found ? found->host + found->offset(ptr) : ptr);
      in_turn([=] { fill_bytes(host, value, bytes, count); });
    }
  }

  /// On the queue's thread.
  void call(void (*function)(void*), void* argument) override {
    in_turn([=] { function(argument); });
  }

  bool waits_for_values() const noexcept override { return true; }

  /// The queue's thread looks at the word again and again, ever less often: engines wait for signals only.
  void wait_value(Address address, std::uint32_t value) override {
    in_turn([=] { wait_for_word(address, value); });
  }

  void write_value(Address address, std::uint32_t value) override {
    in_turn([=] { write_word(address, value); });
  }

  /// The end of all work so far; the runtime is not asked for anything.
  std::unique_ptr<VendorEvent> record() override {
    check_open();
    return worker_->record(runtime_);
  }

  /// The queue's thread waits for an event that is not reached.
  void wait(VendorEvent& event) override {
    check_open();
    auto const work = Event::of_ours(event).work;
    if (work && work != worker_->tail() && !work->over()) {
      in_turn([work] { work->wait(); });
    }
  }

  bool done() override {
    check_open();
    return worker_->now(runtime_)->done();
  }

  void synchronize() override { record()->wait(); }

  /// The thread ends once all work is over.
  void close() override {
    runtime_.started().check();
    end();
  }

 private:
  void end() noexcept {
    if (closed_.exchange(true)) return;
    worker_->stop();
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
    if (!worker_->caught_up()) {
      auto entry = new_entry(height + 1);
      entry.front().start = [=, &runtime = runtime_, signal = entry.front().work->signal] {
        begin(runtime, rows, *to, *from, signal, std::nullopt);
      };
      return worker_->put(std::move(entry));
    }
    auto const tail = worker_->tail();
    std::optional<Handle> after;
    if (tail && !tail->over()) after = tail->signal;
    auto entry = new_entry(height);
    try {
      begin(runtime_, rows, *to, *from, entry.front().work->signal, after);
    } catch (...) {
      worker_->put(std::move(entry));  // the rows before the one that was refused are under way
      throw;
    }
    worker_->put(std::move(entry));
  }

  void in_turn(Start start) {
    check_open();
    auto entry = new_entry(1);
    entry.front().start = std::move(start);
    worker_->put(std::move(entry));
  }

  Worker::Entries new_entry(std::int64_t parts) {
    Worker::Entries entry;
    entry.push_back({std::make_shared<Work>(runtime_, spares_, parts), nullptr});
    return entry;
  }

  void check_open() {
    runtime_.started().check();
    if (closed_) throw Unsupported("this HSA queue is closed: make another");
  }

  Runtime const& runtime_;
  int const gpu_;
  std::shared_ptr<Worker> const worker_;
  std::shared_ptr<SpareSignals> const spares_ = std::make_shared<SpareSignals>(runtime_);
  std::atomic<bool> closed_ = false;
};

}  // namespace

std::pair<std::unique_ptr<VendorQueue>, std::shared_ptr<Worker>> make_queue(Runtime const& runtime, int gpu) {
  auto worker = Worker::make();
  try {
    return {std::make_unique<Queue>(runtime, gpu, worker), worker};
  } catch (...) {
    worker->stop();
    throw;
  }
}

}  // namespace pinning::hsa
