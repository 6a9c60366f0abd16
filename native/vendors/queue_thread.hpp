// SPDX-License-Identifier: Apache-2.0
// A thread that executes a queue's work in order, for vendors whose engines do not.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <pinning/errors.hpp>
#include <thread>

#include "../base/futex.hpp"
#include "../base/spin_time.hpp"
#include "../base/system_call.hpp"

namespace pinning {

/// The jobs of a queue, and the thread that runs them one after another until it is stopped and all are done.
class QueueThread {
 public:
  struct Job {
    virtual ~Job() = default;
    virtual void run() = 0;
    std::unique_ptr<Job> next = nullptr;
  };

  QueueThread() = default;
  QueueThread(QueueThread const&) = delete;

  /// Ends the thread after all jobs are done. May be called by any destructor.
  void stop() noexcept {
    {
      std::lock_guard const guard(mutex_);
      stopped_ = true;
    }
    news_.add_one();
  }

 protected:
  /// Starts a detached thread, which keeps no process alive; `body` calls `run`. Throws VendorError.
  static void start(char const* name, std::function<void()> body) {
    auto own = std::make_unique<std::function<void()>>(std::move(body));
    // The program's own threads handle signals, except those that the body itself causes.
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
                                    "idle, or raise `ulimit -u`, `ulimit -v` or pids.max of the control group"));
    }
    own.release();
    pthread_setname_np(thread, name);
    pthread_detach(thread);
  }

  template <class Work>
  static std::unique_ptr<Job> job(Work work) {
    struct Of : Job {
      explicit Of(Work&& work) : work(std::move(work)) {}
      void run() override { work(); }
      Work work;
    };
    return std::make_unique<Of>(std::move(work));
  }

  /// Appends a job and calls `meanwhile` under the mutex; if `meanwhile` throws, no job is added.
  template <class Meanwhile>
  void put(std::unique_ptr<Job> job, Meanwhile&& meanwhile) {
    {
      std::lock_guard const guard(mutex_);
      meanwhile();
      Job* const added = job.get();
      (first_ ? last_->next : first_) = std::move(job);
      last_ = added;
    }
    news_.add_one();
  }

  void run() {
    while (auto const job = next()) job->run();
  }

  std::mutex mutex_;
  std::atomic<bool> stopped_ = false;

 private:
  /// Takes the first job, waiting for one; null once the thread is stopped and all jobs are done.
  std::unique_ptr<Job> next() {
    for (;;) {
      std::uint32_t const seen = news_.load();
      {
        std::lock_guard const guard(mutex_);
        if (auto first = std::move(first_)) {
          first_ = std::move(first->next);
          return first;
        }
        if (stopped_) return nullptr;
      }
      // Poll first: waking a thread takes longer than everything else here, and the next job often comes at once.
      for (SpinTime time; news_.load() == seen && time.lasts() < std::chrono::microseconds(20);) {
        std::this_thread::yield();
      }
      news_.wait(seen);
    }
  }

  std::unique_ptr<Job> first_;
  Job* last_ = nullptr;  // valid if `first_` is not null
  Futex news_;  // incremented by `put` and `stop`
};

}  // namespace pinning
