// SPDX-License-Identifier: Apache-2.0
// The kernel's userfaultfd tells which memory leaves: who unmaps, moves or discards watched memory waits in that call
// until it has been read here.
//
// Two threads. The reader waits for nobody and neither allocates nor frees: whoever it waited for might be waiting for it
// in munmap. The undoer does what may take long, such as a vendor's calls. Both start when something is watched first,
// take no signals and never end.
//
// Locks, in this order, all held for a few instructions or a system call: `ranges_mutex_` guards who watches which pages,
// and what the kernel was told of them; the reader does not take it. `tenants_mutex_` guards the list of tenants; who
// holds it neither allocates nor frees, nor calls the kernel. The reader calls `try_left` with it.
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <pinning/watcher.hpp>
#include <system_error>
#include <thread>

#include "../file_identity.hpp"
#include "page_counts.hpp"

namespace pinning {

namespace {

#ifndef UFFD_USER_MODE_ONLY
constexpr int UFFD_USER_MODE_ONLY = 1;
#endif
constexpr std::uint64_t wanted = UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE;
Address const page = static_cast<Address>(sysconf(_SC_PAGESIZE));

/// Each range splits mappings, of which a process may have 65 530 by default.
constexpr std::size_t most_ranges = 16'384;

bool switched_off() {
  char const* const value = std::getenv("PINNING_WATCH");
  return value != nullptr && std::strcmp(value, "0") == 0;
}

/// Starts a thread that takes no signals, which are the program's.
template <class Body>
void start_thread(Body&& body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread(body).detach();
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

class Watch : public Watcher {
 public:
  void add(Tenant& tenant, bool undone_by_thread) noexcept override {
    std::lock_guard const guard(tenants_mutex_);
    tenant.undone_by_thread_ = undone_by_thread;
    tenant.next_ = tenants_;
    tenants_ = &tenant;
  }

  void remove(Tenant& tenant) noexcept override {
    std::unique_lock guard(tenants_mutex_);
    Tenant** link = &tenants_;
    while (*link != nullptr && *link != &tenant) link = &(*link)->next_;
    if (*link == nullptr) return;  // in a child of fork, one of the parent's
    *link = tenant.next_;
    while (tenant.undoing_) {
      guard.unlock();
      sched_yield();
      guard.lock();
    }
  }

  bool watch(Address ptr, std::uint64_t size) noexcept override {
    if (size == 0 || ptr + (size - 1) < ptr) return false;
    Address const start = ptr & -page, end = ((ptr + (size - 1)) & -page) + page;
    std::lock_guard const guard(ranges_mutex_);
    if (!started() || ranges_ == most_ranges || end <= start) return false;
    try {
      pages_.add(start, end);
    } catch (std::bad_alloc const&) {
      return false;
    }
    // Also where others watch it already: it may be new memory by now.
    uffdio_register made{{start, end - start}, UFFDIO_REGISTER_MODE_WP, 0};
    if (!identity_.is_of(file_) || ioctl(file_, UFFDIO_REGISTER, &made) != 0) {
      pages_.remove(start, end, [&](Address from, Address to) { forget(from, to); });
      return false;
    }
    ++ranges_;
    return true;
  }

  void unwatch(Address ptr, std::uint64_t size) noexcept override {
    Address const start = ptr & -page, end = ((ptr + (size - 1)) & -page) + page;
    std::lock_guard const guard(ranges_mutex_);
    pages_.remove(start, end, [&](Address from, Address to) { forget(from, to); });
    --ranges_;
  }

  /// First the kernel: it counts a change from before the memory goes until the caller of munmap goes on, which is after
  /// the reader has raised `unheard_`. Then whether the reader is done. See docs/concurrency.md.
  bool settled() noexcept override {
    int const file = open_file_.load(std::memory_order_acquire);
    if (file < 0) return true;
    uffdio_zeropage nothing{};  // of no bytes: refused, with EAGAIN while a change is under way
    bool const changing = ioctl(file, UFFDIO_ZEROPAGE, &nothing) != 0 && errno == EAGAIN;
    return !changing && !unheard();
  }

  std::string problem() override {
    std::lock_guard const guard(ranges_mutex_);
    started();
    return problem_;
  }

  /// In a child of fork, where neither thread is, and the file is the parent's.
  void begin_anew() noexcept {
    int const file = open_file_.load(std::memory_order_relaxed);
    if (identity_.is_of(file)) close(file);
    static_assert(noexcept(new (this) Watch));
    new (this) Watch;  // the old one may have been in the midst of anything, and is not destroyed
  }

 private:
  // ---- with `ranges_mutex_` ----

  bool started() noexcept {
    if (!tried_) {
      tried_ = true;
      try {
        start();
      } catch (std::bad_alloc const&) {
        problem_ = "no memory left";  // so short that it needs none
      } catch (std::system_error const&) {
        problem_ = "no thread more";
      }
      if (!problem_.empty() && file_ >= 0) close(std::exchange(file_, -1));
    }
    return file_ >= 0;
  }

  void start() {
    if (switched_off()) {
      problem_ = "PINNING_WATCH=0 is set";
      return;
    }
    file_ = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY));
    if (file_ < 0) {
      problem_ = std::string("the kernel refuses userfaultfd: ") + std::strerror(errno) +
                 (errno == EPERM ? " (a seccomp filter, such as Docker's, forbids it)" : "");
      return;
    }
    uffdio_api api{UFFD_API, wanted, 0};
    if (ioctl(file_, UFFDIO_API, &api) != 0) {
      problem_ = "the kernel's userfaultfd does not tell of memory that leaves; Linux 5.11 or later does";
      return;
    }
    identity_ = FileIdentity(file_);
    start_thread([this] { undo(); });
    start_thread([this, file = file_] { read(file); });
    reads_.wait(false, std::memory_order_acquire);
    open_file_.store(file_, std::memory_order_release);
  }

  void forget(Address start, Address end) noexcept {
    uffdio_range range{start, end - start};
    if (identity_.is_of(file_)) ioctl(file_, UFFDIO_UNREGISTER, &range);  // refused where nothing is mapped any more
  }

  // ---- the reader ----

  struct Range {
    Address start, end;
    friend bool operator==(Range const&, Range const&) = default;
  };

  [[noreturn]] void read(int file) noexcept {
    // In a table of files that is this thread's own, and holds no other file: the program may close all that it does not
    // know, and what has the number then is not to be read here. What it closes of its own must not stay open here.
    syscall(SYS_close_range, file + 1, ~0U, CLOSE_RANGE_UNSHARE);
    if (file > 0) syscall(SYS_close_range, 0, file - 1, 0);
    reads_.test_and_set(std::memory_order_release);
    reads_.notify_one();
    for (;;) {
      pollfd ready{file, POLLIN, 0};
      if (poll(&ready, 1, -1) < 0) continue;
      if ((ready.revents & POLLIN) == 0) stop();
      unheard_.store(true, std::memory_order_seq_cst);  // before the first read, which lets the caller of munmap go on
      take(file);
      bool wants_undo = false;
      {
        std::lock_guard const guard(tenants_mutex_);
        for (std::size_t i = 0; i < heard_; ++i) {  // of more meanwhile
          Range told;
          do {
            told = ranges_heard_[i];
            for (Tenant* tenant = tenants_; tenant != nullptr; tenant = tenant->next_) {
              wants_undo |= tell(*tenant, told, file);
            }
          } while (told != ranges_heard_[i]);
        }
      }
      heard_ = 0;
      unheard_.store(false, std::memory_order_seq_cst);
      if (wants_undo) {
        undo_wanted_.fetch_add(1, std::memory_order_release);
        undo_wanted_.notify_one();
      }
    }
  }

  bool tell(Tenant& tenant, Range range, int file) noexcept {
    for (;;) {
      if (auto const wants_undo = tenant.try_left(range.start, range.end - range.start)) return *wants_undo;
      take(file);  // who holds a lock of the tenant's may be waiting in munmap
      sched_yield();
    }
  }

  /// Reads what there is, so that no caller of munmap waits. What there is no room for makes the last range larger.
  void take(int file) noexcept {
    uffd_msg message;
    while (::read(file, &message, sizeof message) == sizeof message) {
      Range range;
      if (message.event == UFFD_EVENT_UNMAP || message.event == UFFD_EVENT_REMOVE) {
        range = {message.arg.remove.start, message.arg.remove.end};
      } else if (message.event == UFFD_EVENT_REMAP) {
        range = {message.arg.remap.from, message.arg.remap.from + message.arg.remap.len};
      } else {
        continue;
      }
      if (heard_ < ranges_heard_.size()) {
        ranges_heard_[heard_++] = range;
      } else {
        Range& last = ranges_heard_.back();
        last = {std::min(last.start, range.start), std::max(last.end, range.end)};
      }
    }
  }

  /// The file is closed, by whoever closes all files there are: nobody can be told of anything.
  [[noreturn]] void stop() noexcept {
    open_file_.store(-1, std::memory_order_release);
    for (;;) pause();
  }

  // ---- the undoer ----

  [[noreturn]] void undo() noexcept {
    for (std::uint32_t done = 0;;) {
      undo_wanted_.wait(done, std::memory_order_acquire);
      done = undo_wanted_.load(std::memory_order_acquire);
      std::unique_lock guard(tenants_mutex_);
      for (Tenant* tenant = tenants_; tenant != nullptr; tenant = tenant->next_) {
        if (!tenant->undone_by_thread_) continue;
        tenant->undoing_ = true;
        guard.unlock();
        try {
          tenant->undo_left();
        } catch (...) {  // who meets it next tries again
        }
        guard.lock();
        tenant->undoing_ = false;
      }
    }
  }

  std::mutex ranges_mutex_;
  bool tried_ = false;
  int file_ = -1;
  FileIdentity identity_;
  std::string problem_;
  PageCounts pages_;
  std::size_t ranges_ = 0;

  std::mutex tenants_mutex_;
  Tenant* tenants_ = nullptr;

  std::atomic<int> open_file_ = -1;
  std::atomic_flag reads_;  // the reader has its own table of files
  std::atomic<std::uint32_t> undo_wanted_ = 0;

  // The reader's own.
  std::array<Range, 1024> ranges_heard_;
  std::size_t heard_ = 0;
};

namespace {

Watch& only();

void after_fork_in_child() { only().begin_anew(); }

/// Never destroyed: its threads go on until the end.
Watch& only() {
  static Watch& watch = []() -> Watch& {
    auto* const made = new Watch;
    if (pthread_atfork(nullptr, nullptr, after_fork_in_child) != 0) throw std::bad_alloc();
    return *made;
  }();
  return watch;
}

}  // namespace

Watcher& process_watcher() { return only(); }

}  // namespace pinning
