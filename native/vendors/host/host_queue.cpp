// SPDX-License-Identifier: Apache-2.0
// Locks: `QueueThread::mutex_` guards a queue's jobs, `HostQueues::mutex_` the list of queues; each is taken last and
// held for an insertion or a search. Waits for a job or a point use a futex.
#include "host_queue.hpp"

#include <atomic>
#include <chrono>
#include <cstring>
#include <pinning/process.hpp>
#include <vector>

#include "../../base/futex.hpp"
#include "../../base/system_call.hpp"
#include "../host_work.hpp"
#include "../queue_thread.hpp"

namespace pinning {

namespace {

using Clock = std::chrono::steady_clock;

void check_process(unsigned made_in) {
  if (!is_parents(made_in)) return;
  throw std::runtime_error("this queue of the host belongs to the process that made it, of which this is a fork: make "
                           "queues after the fork");
}

char* at(Address address) { return reinterpret_cast<char*>(address); }

/// A position in a queue.
struct Point {
  Futex reached;  // 1 once reached
  Clock::time_point time;

  void await() noexcept {
    while (reached.load() == 0) reached.wait(0);
  }
};

class HostEvent : public VendorEvent {
 public:
  explicit HostEvent(std::shared_ptr<Point> point) : point_(std::move(point)) {}
  bool done() override { return point_->reached.load() != 0; }
  void wait() override {
    while (!wait_a_while()) {
    }
  }
  bool wait_a_while() override {
    if (done()) return true;
    check_process(made_in_);
    point_->reached.wait_a_while(0);
    return done();
  }
  double seconds_since(VendorEvent& earlier) override {
    HostEvent& first = of_the_host(earlier);
    if (!done() || !first.done()) {
      throw VendorError(failed_call("seconds_since", EAGAIN, "a point is not reached yet; wait for it first"));
    }
    return std::chrono::duration<double>(point_->time - first.point_->time).count();
  }

  static HostEvent& of_the_host(VendorEvent& event) { return event_cast<HostEvent>(event, "the host"); }
  std::shared_ptr<Point> const& point() const noexcept { return point_; }

 private:
  std::shared_ptr<Point> const point_;
  unsigned const made_in_ = generation();
};

}  // namespace

class HostQueueThread : public QueueThread {
 public:
  explicit HostQueueThread(std::uintptr_t handle) : handle_(handle) {}

  static void start(std::shared_ptr<HostQueueThread> const& thread) {
    QueueThread::start("pinning queue", [thread] { thread->run(); });
  }

  /// `recorded`: the point that this job reaches, if any.
  template <class Work>
  void put(Work work, std::shared_ptr<Point> recorded = nullptr) {
    check_process(made_in_);
    auto finishing = [this, work = std::move(work)] {
      work();
      finished_.add_one();
    };
    QueueThread::put(job(std::move(finishing)), [&] {
      check_open();
      submitted_.fetch_add(1, std::memory_order_relaxed);
      last_ = std::move(recorded);
    });
  }

  void check_open() const {
    if (stopped_) throw Unsupported("this queue of the host is closed: make another");
  }

  bool done() {
    check_process(made_in_);
    if (is_finished(submitted_.load(std::memory_order_relaxed))) return true;
    // A thread that has waited for the last event knows that all is done, a moment before its job has ended.
    std::lock_guard const guard(mutex_);
    return last_ != nullptr && last_->reached.load() != 0;
  }

  void synchronize() {
    std::uint64_t until = 0;
    while (!wait_a_while(until)) {
    }
  }
  bool wait_a_while(std::uint64_t& until) {
    check_process(made_in_);
    if (until == 0) until = submitted_.load(std::memory_order_relaxed);
    std::uint32_t const now = finished_.load();
    if (is_finished(until)) return true;
    finished_.wait_a_while(now);
    return is_finished(until);
  }

  std::uintptr_t handle() const noexcept { return handle_; }
  bool is_parents() const noexcept { return pinning::is_parents(made_in_); }

 private:
  /// Whether this many jobs are done; fewer than 2^31 are ever pending.
  bool is_finished(std::uint64_t jobs) const noexcept {
    return static_cast<std::int32_t>(finished_.load() - static_cast<std::uint32_t>(jobs)) >= 0;
  }

  std::uintptr_t const handle_;
  unsigned const made_in_ = generation();
  std::atomic<std::uint64_t> submitted_ = 0;  // jobs
  Futex finished_;                            // jobs
  std::shared_ptr<Point> last_;               // of the last job if it records one; `mutex_` guards it
};

namespace {

class HostQueue : public VendorQueue {
 public:
  /// `queues` lists the thread until this queue stops it; null for an adopted queue.
  HostQueue(std::shared_ptr<HostQueueThread> thread, HostQueues* queues) : thread_(std::move(thread)), queues_(queues) {}
  ~HostQueue() override {
    if (!thread_->is_parents()) close();
  }

  std::uintptr_t handle() const noexcept override { return thread_->handle(); }

  void copy(Address dst, Address src, std::uint64_t size) override {
    thread_->put([=] { std::memmove(at(dst), at(src), size); });
  }
  void copy_2d(Address dst, std::uint64_t dst_pitch, Address src, std::uint64_t src_pitch, std::uint64_t width,
               std::uint64_t height) override {
    thread_->put([=] {
      for (std::uint64_t row = 0; row < height; ++row) {
        std::memmove(at(dst + row * dst_pitch), at(src + row * src_pitch), width);
      }
    });
  }
  void fill(Address ptr, std::uint32_t value, unsigned bytes, std::uint64_t count) override {
    thread_->put([=] { fill_bytes(at(ptr), value, bytes, count); });
  }
  void call(void (*function)(void*), void* argument) override {
    thread_->put([=] { function(argument); });
  }

  bool waits_for_values() const noexcept override { return true; }
  void wait_value(Address address, std::uint32_t value) override {
    thread_->put([=] { wait_for_word(address, value); });
  }
  void write_value(Address address, std::uint32_t value) override {
    thread_->put([=] { write_word(address, value); });
  }

  std::unique_ptr<VendorEvent> record() override {
    auto point = std::make_shared<Point>();
    auto event = std::make_unique<HostEvent>(point);
    auto const reach = [point] {
      point->time = Clock::now();
      point->reached.store(1);
    };
    thread_->put(reach, std::move(point));
    return event;
  }
  void wait(VendorEvent& event) override {
    thread_->put([point = HostEvent::of_the_host(event).point()] { point->await(); });
  }
  bool done() override {
    thread_->check_open();
    return thread_->done();
  }
  void synchronize() override {
    thread_->check_open();
    thread_->synchronize();
  }
  bool synchronize_a_while(std::uint64_t& until) override {
    thread_->check_open();
    return thread_->wait_a_while(until);
  }
  void close() override {
    if (queues_ == nullptr) return;
    queues_->forget(thread_->handle());
    thread_->stop();
  }

 private:
  std::shared_ptr<HostQueueThread> const thread_;
  HostQueues* const queues_;
};

}  // namespace

std::unique_ptr<VendorQueue> HostQueues::make() {
  std::uintptr_t handle;
  {
    std::lock_guard const guard(mutex_);
    handle = ++last_handle_;
  }
  auto thread = std::make_shared<HostQueueThread>(handle);
  auto queue = std::make_unique<HostQueue>(thread, this);
  std::map<std::uintptr_t, std::weak_ptr<HostQueueThread>> entry{{handle, thread}};
  HostQueueThread::start(thread);
  std::lock_guard const guard(mutex_);
  threads_.insert(entry.extract(handle));
  return queue;
}

std::unique_ptr<VendorQueue> HostQueues::adopt(std::uintptr_t handle) {
  std::shared_ptr<HostQueueThread> thread;
  {
    std::lock_guard const guard(mutex_);
    if (auto const entry = threads_.find(handle); entry != threads_.end()) thread = entry->second.lock();
  }
  if (!thread) {
    throw InvalidRange("the host has no queue with the handle " + std::to_string(handle) +
                       "; adopt the handle of a queue that exists");
  }
  return std::make_unique<HostQueue>(std::move(thread), nullptr);
}

void HostQueues::synchronize() {
  std::vector<std::shared_ptr<HostQueueThread>> threads;
  {
    std::lock_guard const guard(mutex_);
    for (auto const& [handle, entry] : threads_) {
      if (auto thread = entry.lock()) threads.push_back(std::move(thread));
    }
  }
  for (auto const& thread : threads) thread->synchronize();
}

void HostQueues::forget(std::uintptr_t handle) noexcept {
  std::map<std::uintptr_t, std::weak_ptr<HostQueueThread>>::node_type entry;
  std::lock_guard const guard(mutex_);
  entry = threads_.extract(handle);
}

}  // namespace pinning
