// SPDX-License-Identifier: Apache-2.0
// Locks: `Worker::mutex_` guards a queue's jobs, `HostQueues::mutex_` the list of queues; each is taken last and held for an
// insert or a look. Whoever waits for a thread or a point waits for a number.
#include "host_queue.hpp"

#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <pinning/generation.hpp>
#include <thread>
#include <vector>

#include "../../base/futex.hpp"
#include "../../base/system_call.hpp"
#include "../host_work.hpp"

namespace pinning {

namespace {

using Clock = std::chrono::steady_clock;

void check_process(unsigned made_in) {
  if (made_in == generation()) return;
  throw std::runtime_error("this queue of the host belongs to the process that made it, of which this is a fork: make "
                           "queues after the fork");
}

char* at(Address address) { return reinterpret_cast<char*>(address); }

/// Where a queue's thread comes by.
struct Point {
  Futex reached;  // 1 then
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

/// A thread that does one job after another, and lives until it is stopped and has done all. It keeps no process alive.
class Worker {
 public:
  using Job = std::function<void()>;

  explicit Worker(std::uintptr_t handle) : handle_(handle) {}

  /// Throws VendorError where there is no thread to be had.
  static void start(std::shared_ptr<Worker> const& worker) {
    if (int const code = start_thread("pinning queue", [worker] { worker->run(); }); code != 0) {
      throw VendorError(failed_call("pthread_create", code, "there is no thread for a queue of the host to be had; close "
                                                            "queues that are idle"));
    }
  }

  void put(Job job) {
    check_process(made_in_);
    {
      std::lock_guard const guard(mutex_);
      check_open();
      jobs_.push_back(std::move(job));
      submitted_.fetch_add(1, std::memory_order_relaxed);
    }
    news_.add_one();
  }

  void check_open() const {
    if (stopped_) throw Unsupported("this queue of the host is closed: make another");
  }

  /// Ends the thread once all jobs are done.
  void stop() noexcept {
    {
      std::lock_guard const guard(mutex_);
      stopped_ = true;
    }
    news_.add_one();
  }

  bool done() {
    check_process(made_in_);
    return is_finished(submitted_.load(std::memory_order_relaxed));
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
  /// Whether its thread is one of this process.
  bool is_here() const noexcept { return made_in_ == generation(); }

 private:
  /// Whether so many jobs are done; there are never 2^31 to be done at once.
  bool is_finished(std::uint64_t jobs) const noexcept {
    return static_cast<std::int32_t>(finished_.load() - static_cast<std::uint32_t>(jobs)) >= 0;
  }

  /// The first job; nothing once it is stopped and has none.
  Job next() {
    for (;;) {
      std::uint32_t const seen = news_.load();
      {
        std::lock_guard const guard(mutex_);
        if (!jobs_.empty()) {
          Job job = std::move(jobs_.front());
          jobs_.pop_front();
          return job;
        }
        if (stopped_) return {};
      }
      // To wake a thread takes its waker longer than all else, and the next job often comes at once.
      for (auto const until = Clock::now() + std::chrono::microseconds(20);
           news_.load() == seen && Clock::now() < until;) {
        std::this_thread::yield();
      }
      news_.wait(seen);
    }
  }

  void run() {
    while (Job job = next()) {
      job();
      job = nullptr;
      finished_.add_one();
    }
  }

  std::uintptr_t const handle_;
  unsigned const made_in_ = generation();
  std::mutex mutex_;
  std::deque<Job> jobs_;
  std::atomic<bool> stopped_ = false;
  std::atomic<std::uint64_t> submitted_ = 0;  // jobs
  Futex finished_;                            // jobs
  Futex news_;                                // of jobs, and of the end
};

namespace {

class HostQueue : public VendorQueue {
 public:
  /// `queues` is told when this ends the thread; null for a queue that was adopted.
  HostQueue(std::shared_ptr<Worker> worker, HostQueues* queues) : worker_(std::move(worker)), queues_(queues) {}
  ~HostQueue() override {
    if (worker_->is_here()) close();
  }

  std::uintptr_t handle() const noexcept override { return worker_->handle(); }

  void copy(Address dst, Address src, std::uint64_t size) override {
    worker_->put([=] { std::memmove(at(dst), at(src), size); });
  }
  void copy_2d(Address dst, std::uint64_t dst_pitch, Address src, std::uint64_t src_pitch, std::uint64_t width,
               std::uint64_t height) override {
    worker_->put([=] {
      for (std::uint64_t row = 0; row < height; ++row) {
        std::memmove(at(dst + row * dst_pitch), at(src + row * src_pitch), width);
      }
    });
  }
  void fill(Address ptr, std::uint32_t value, unsigned bytes, std::uint64_t count) override {
    worker_->put([=] { fill_bytes(at(ptr), value, bytes, count); });
  }
  void call(void (*function)(void*), void* argument) override {
    worker_->put([=] { function(argument); });
  }

  bool waits_for_values() const noexcept override { return true; }
  void wait_value(Address address, std::uint32_t value) override {
    worker_->put([=] { wait_for_word(address, value); });
  }
  void write_value(Address address, std::uint32_t value) override {
    worker_->put([=] { write_word(address, value); });
  }

  std::unique_ptr<VendorEvent> record() override {
    auto point = std::make_shared<Point>();
    auto event = std::make_unique<HostEvent>(point);
    worker_->put([point = std::move(point)] {
      point->time = Clock::now();
      point->reached.store(1);
    });
    return event;
  }
  void wait(VendorEvent& event) override {
    worker_->put([point = HostEvent::of_the_host(event).point()] { point->await(); });
  }
  bool done() override {
    worker_->check_open();
    return worker_->done();
  }
  void synchronize() override {
    worker_->check_open();
    worker_->synchronize();
  }
  bool synchronize_a_while(std::uint64_t& until) override {
    worker_->check_open();
    return worker_->wait_a_while(until);
  }
  void close() override {
    if (queues_ == nullptr) return;
    queues_->forget(worker_->handle());
    worker_->stop();
  }

 private:
  std::shared_ptr<Worker> const worker_;
  HostQueues* const queues_;
};

}  // namespace

std::unique_ptr<VendorQueue> HostQueues::make() {
  std::uintptr_t handle;
  {
    std::lock_guard const guard(mutex_);
    handle = ++last_handle_;
  }
  auto worker = std::make_shared<Worker>(handle);
  auto queue = std::make_unique<HostQueue>(worker, this);
  std::map<std::uintptr_t, std::weak_ptr<Worker>> entry{{handle, worker}};
  Worker::start(worker);
  std::lock_guard const guard(mutex_);
  workers_.insert(entry.extract(handle));
  return queue;
}

std::unique_ptr<VendorQueue> HostQueues::adopt(std::uintptr_t handle) {
  std::shared_ptr<Worker> worker;
  {
    std::lock_guard const guard(mutex_);
    if (auto const found = workers_.find(handle); found != workers_.end()) worker = found->second.lock();
  }
  if (!worker) {
    throw InvalidRange("the host has no queue with the handle " + std::to_string(handle) +
                       "; take it from a queue's `handle`");
  }
  return std::make_unique<HostQueue>(std::move(worker), nullptr);
}

void HostQueues::synchronize() {
  std::vector<std::shared_ptr<Worker>> working;
  {
    std::lock_guard const guard(mutex_);
    for (auto const& [handle, worker] : workers_) {
      if (auto here = worker.lock()) working.push_back(std::move(here));
    }
  }
  for (auto const& worker : working) worker->synchronize();
}

void HostQueues::forget(std::uintptr_t handle) noexcept {
  std::map<std::uintptr_t, std::weak_ptr<Worker>>::node_type entry;
  std::lock_guard const guard(mutex_);
  entry = workers_.extract(handle);
}

}  // namespace pinning
