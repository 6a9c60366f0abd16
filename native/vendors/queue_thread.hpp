// SPDX-License-Identifier: Apache-2.0
// A thread that does a queue's work in order, for vendors whose engines do not.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <pinning/errors.hpp>
#include <thread>

#include "../base/futex.hpp"
#include "../base/system_call.hpp"

namespace pinning {

/// The jobs of a queue, and the thread that does one after another until it is stopped and all are done.
class QueueThread {
 public:
  using Job = std::function<void()>;
  /// One job, in a list, so that putting it needs no memory.
  using Entry = std::list<Job>;

  QueueThread() = default;
  QueueThread(QueueThread const&) = delete;

  /// Ends the thread once all jobs are done. Any destructor may call it.
  void stop() noexcept {
    {
      std::lock_guard const guard(mutex_);
      stopped_ = true;
    }
    news_.add_one();
  }

 protected:
  /// Starts a thread, whose body calls `run`. It keeps no process alive. Throws VendorError.
  static void start(char const* name, std::function<void()> body) {
    auto own = std::make_unique<std::function<void()>>(std::move(body));
    // Signals are for the program's own threads, except for those that the body itself causes.
    sigset_t all, before;
    sigfillset(&all);
    for (int const own_fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP}) sigdelset(&all, own_fault);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    int const code = pthread_create(
        &thread, nullptr,
        [](void* argument) -> void* {
          std::unique_ptr<std::function<void()>> const body(static_cast<std::function<void()>*>(argument));
          (*body)();
          return nullptr;
        },
        own.get());
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (code != 0) {
      throw VendorError(failed_call("pthread_create", code, "no thread can be started for a queue; close queues that are "
                                                            "idle"));
    }
    own.release();
    pthread_setname_np(thread, name);
    pthread_detach(thread);
  }

  /// Puts a job behind all others, and calls `meanwhile` under the mutex: if that throws, there is no new job.
  template <class Meanwhile>
  void put(Entry job, Meanwhile&& meanwhile) {
    {
      std::lock_guard const guard(mutex_);
      meanwhile();
      jobs_.splice(jobs_.end(), job);
    }
    news_.add_one();
  }

  void run() {
    for (Entry job = next(); !job.empty(); job = next()) {
      job.front()();
      job.clear();
    }
  }

  std::mutex mutex_;
  std::atomic<bool> stopped_ = false;

 private:
  /// The first job; none once the thread is stopped and all are done.
  Entry next() {
    for (;;) {
      std::uint32_t const seen = news_.load();
      {
        Entry first;
        std::lock_guard const guard(mutex_);
        if (!jobs_.empty()) first.splice(first.end(), jobs_, jobs_.begin());
        if (stopped_ || !first.empty()) return first;
      }
      // Waking a thread takes longer than all else here, and the next job often comes at once.
      for (auto const until = std::chrono::steady_clock::now() + std::chrono::microseconds(20);
           news_.load() == seen && std::chrono::steady_clock::now() < until;) {
        std::this_thread::yield();
      }
      news_.wait(seen);
    }
  }

  Entry jobs_;
  Futex news_;  // of jobs, and of the end
};

}  // namespace pinning
