// SPDX-License-Identifier: Apache-2.0
// The kernel's userfaultfd reports memory that goes away: a thread that unmaps, moves or discards watched memory waits
// in that call until the event has been read here.
//
// If the program's own calls of libc are seen (native/tool/hooks.cpp), `invalidate` notifies the listeners
// before these calls remove memory: on the calling thread or, if a lock of a listener is taken, perhaps by that thread
// itself, on another.
//
// While other threads take memory away all the time, there may be no instant in which no event is under way. No lock or
// unlock of other memory waits for one: it asks the kernel whether its own memory is still watched (`intact`).
//
// There are two or three threads. The reader waits for no thread and neither allocates nor frees: the thread it would
// wait for might be waiting for it in munmap. The drain thread does what may take long, such as vendor calls, and ends the
// watch of memory that has moved. Both start when something is first watched, take no signals and never end. If calls
// are seen, the notifier is the third.
//
// Locks, in this order, all held for a few instructions or a system call: `ranges_mutex_` guards which pages are
// watched, and their registration with the kernel; the reader only tries it. `listeners_mutex_` guards the list of
// listeners; a holder neither allocates nor frees, nor calls the kernel. The reader holds it while it calls
// `try_invalidate`. A thread that may hold neither walks the list without a lock, counted in `walkers_`, for which
// `remove` waits. `posted_lock_` is taken last, to read or change a list.
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
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
#include <pinning/process.hpp>
#include <pinning/watcher.hpp>
#include <span>
#include <system_error>
#include <thread>

#include "../base/descriptor.hpp"
#include "../base/file_identity.hpp"
#include "../base/setting.hpp"
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

/// What moves while there is no room here stays watched.
constexpr std::size_t most_arrived = 256;

/// Tries to find that the memory beside a range is intact, see `await_quiet`.
constexpr int most_looks = 100;

/// Tries to notify a listener by a thread that removes memory; then the lock's holder may be waiting for that thread.
constexpr int most_tries = 1000;

bool switched_off() {
  static bool const is_off = !is_switched_on("PINNING_WATCH", true);
  return is_off;
}

/// Start a thread that takes no signals: these belong to the program.
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
  void add(InvalidationListener& listener, bool drained_by_thread) noexcept override {
    std::lock_guard const guard(listeners_mutex_);
    listener.drained_by_thread_ = drained_by_thread;
    listener.next_ = listeners_.load();
    listeners_ = &listener;
  }

  void remove(InvalidationListener& listener) noexcept override {
    std::unique_lock guard(listeners_mutex_);
    std::atomic<InvalidationListener*>* link = &listeners_;
    while (*link != nullptr && *link != &listener) link = &link->load()->next_;
    if (*link == nullptr) return;  // in a forked child: a listener of the parent
    *link = listener.next_.load();
    if (undo_next_ == &listener) undo_next_ = listener.next_.load();
    while (listener.draining_) {
      guard.unlock();
      sched_yield();
      guard.lock();
    }
    guard.unlock();
    while (walkers_ != 0) sched_yield();
  }

  void hear_of_calls() noexcept override {
    if (!switched_off()) hears_of_calls_ = true;
  }

  void invalidate(Address ptr, std::uint64_t size) noexcept override {
    if (size == 0 || ptr + (size - 1) < ptr) return;
    Range const range{ptr, ptr + size};
    {
      Walk const walk(*this);
      for (auto* each = listeners_.load(); each != nullptr; each = each->next_) each->will_invalidate(ptr, size);
    }
    bool wants_undo = false;
    if (!notify_listeners(range, wants_undo, most_tries)) post(range);
    if (wants_undo) wake(undo_wanted_);
  }

  bool watch(Address ptr, std::uint64_t size) noexcept override {
    if (size == 0 || ptr + (size - 1) < ptr) return false;
    Address const start = ptr & -page, end = ((ptr + (size - 1)) & -page) + page;
    std::lock_guard const guard(ranges_mutex_);
    low_ = std::min(low_.load(), ptr);
    high_ = std::max(high_.load(), ptr + (size - 1) + 1);
    if (!started() || ranges_ == most_ranges || end <= start) return false;
    try {
      pages_.add(start, end);
    } catch (std::bad_alloc const&) {
      return false;
    }
    // Even if others already watch it: it may be new memory by now.
    if (!have_kernel_watch(start, end)) {
      pages_.remove(start, end);
      return false;
    }
    ++ranges_;
    return true;
  }

  /// Where pages are gone, there may be watched memory that has moved there since, which the kernel continues to watch.
  /// The reader cannot mark pages meanwhile, so `is_quiet` reports afterwards whether any may have gone away just then.
  /// If it is never `is_quiet`, because other memory is going away, it is enough that this memory was there just before.
  void unwatch(Address ptr, std::uint64_t size) noexcept override {
    Address const start = ptr & -page, end = ((ptr + (size - 1)) & -page) + page;
    bool first = true;
    for (std::unique_lock guard(ranges_mutex_);; guard.lock()) {
      bool const quiet = is_quiet();
      if (quiet || (!first && intact(start, end))) {
        pages_.each_last(start, end, [&](Address from, Address to) { end_kernel_watch(from, to); });
        if (!quiet || is_quiet()) {
          pages_.remove(start, end);
          --ranges_;
          return;
        }
        pages_.each_last(start, end, [&](Address from, Address to) { have_kernel_watch(from, to); });
      }
      guard.unlock();
      std::exchange(first, false) ? await_posted() : (void)sched_yield();
    }
  }

  /// First the kernel: it counts a change from before the memory goes away until the caller of munmap continues, after
  /// the reader has raised `pending_`. Then whether the reader is done. See docs/design/invalidation.md.
  bool is_quiet() noexcept override {
    int const file = open_file_.load(std::memory_order_acquire);
    if (file < 0) return !has_pending();
    uffdio_zeropage nothing{};  // no bytes: refused, with EAGAIN while a change is in progress
    bool const changing = ioctl(file, UFFDIO_ZEROPAGE, &nothing) != 0 && errno == EAGAIN;
    return !changing && !has_pending();
  }

  void await_quiet(Address ptr, std::uint64_t size) noexcept override {
    Address const start = ptr & -page, end = ((ptr + (size - 1)) & -page) + page;
    for (int look = 1; !is_quiet(); ++look) {
      std::unique_lock guard(ranges_mutex_);
      if (intact(start, end) && (look >= most_looks || intact_beside(start, end))) break;
      guard.unlock();
      sched_yield();
    }
    await_pending();  // pages are marked before the listeners are notified
  }

  Address end_of_added(Address start) noexcept override {
    std::lock_guard const guard(ranges_mutex_);
    Address const limit = pages_.first_watched(start);
    Address end = start;
    auto const extend = [&](std::uint64_t size) {
      if ((limit != 0 && end + size > limit) || !has_kernel_watch(end, end + size)) return false;
      end += size;
      return true;
    };
    std::uint64_t size = page;
    while (extend(size)) size *= 2;
    while ((size /= 2) >= page) extend(size);
    return end;
  }

  std::string problem() override {
    std::lock_guard const guard(ranges_mutex_);
    started();
    return problem_;
  }

  /// In a forked child, where no thread of the watcher exists, and the file belongs to the parent.
  void restart() noexcept {
    int const file = open_file_.load(std::memory_order_relaxed);
    bool const hears_of_calls = hears_of_calls_;
    if (identity_.is_of(file)) close(file);
    if (file >= 0 && asked_identity_.is_of(asked_file_)) close(asked_file_);
    static_assert(noexcept(Watch()));
    new (this) Watch;  // the old one may have been in the middle of any change, and is not destroyed
    hears_of_calls_ = hears_of_calls;
  }

 private:
  // ---- with `ranges_mutex_` ----

  bool started() noexcept {
    if (!tried_) {
      tried_ = true;
      problem_.clear();
      try {
        start();
      } catch (std::bad_alloc const&) {
        problem_ = "no memory left";  // so short that it needs none
      } catch (std::system_error const&) {
        problem_ = "no more threads";
      }
      if (!problem_.empty() && file_ >= 0) close(std::exchange(file_, -1));
    }
    return file_ >= 0;
  }

  void start() {
    if (switched_off()) {
      problem_ = "PINNING_WATCH=off is set";
      return;
    }
    if (hears_of_calls() && !notifier_) {
      start_thread([this] { undo(); });
      start_thread([this] { tell_posted(); });
      notifier_ = true;
    }
    file_ = open_another();
    if (file_ < 0) {
      tried_ = errno != EMFILE && errno != ENFILE && errno != ENOMEM;  // these may pass until the next lock
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
    asked_file_ = open_another();
    uffdio_api no_events{UFFD_API, 0, 0};
    if (ioctl(asked_file_, UFFDIO_API, &no_events) == 0) asked_identity_ = FileIdentity(asked_file_);
    if (!hears_of_calls()) start_thread([this] { undo(); });
    start_thread([this, file = file_] { read(file); });
    reads_.wait(false, std::memory_order_acquire);
    open_file_.store(file_, std::memory_order_release);
  }

  static int open_another() noexcept {
    return above_streams(static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY)));
  }

  bool have_kernel_watch(Address start, Address end) noexcept {
    uffdio_register made{{start, end - start}, UFFDIO_REGISTER_MODE_WP, 0};
    return identity_.is_of(file_) && ioctl(file_, UFFDIO_REGISTER, &made) == 0;
  }

  void end_kernel_watch(Address start, Address end) noexcept {
    uffdio_range range{start, end - start};
    if (identity_.is_of(file_)) ioctl(file_, UFFDIO_UNREGISTER, &range);
  }

  /// Wait until the reader has handled the events that have been posted by now; that takes one or two batches.
  void await_posted() noexcept {
    auto const batches = [this] { return pending_.load(std::memory_order_seq_cst) / batch; };
    std::uint64_t const next = (batches() + 3) / 2 * 2;
    pollfd posted{open_file_.load(std::memory_order_acquire), POLLIN, 0};
    if (poll(&posted, 1, 0) <= 0) return await_pending();
    while (batches() < next && !is_quiet()) sched_yield();
  }

  /// Whether the kernel watches all of the pages; it takes as long as to unregister them. The kernel refuses to remove
  /// the write protection, of which there is none, of pages that no userfaultfd watches. By which userfaultfd it is
  /// asked makes no difference, but it refuses that to one which is reporting a change. EINVAL: parts of huge pages.
  bool has_kernel_watch(Address start, Address end) noexcept {
    uffdio_writeprotect nothing{{start, end - start}, 0};
    bool const has_gap = msync(reinterpret_cast<void*>(start), end - start, MS_ASYNC) != 0;  // writes nothing
    if (has_gap || !asked_identity_.is_of(asked_file_)) return false;
    return ioctl(asked_file_, UFFDIO_WRITEPROTECT, &nothing) == 0 || errno == EINVAL;
  }

  /// Whether the kernel still watches all pages that are watched and not marked as gone: then no call that unmaps or
  /// moves any of them has begun.
  bool intact(Address start, Address end) noexcept {
    return pages_.all_present(start, end, [&](Address from, Address to) { return has_kernel_watch(from, to); });
  }

  /// Whether the next pages on both sides are intact. The event of a call that unmaps watched memory is of all that the
  /// call unmaps, also if only some of that is watched: while it is under way, the next watched page is seen to be gone.
  bool intact_beside(Address start, Address end) noexcept {
    for (Address const each : {pages_.before(start) & -page, pages_.after(end)}) {
      if (each != 0 && !has_kernel_watch(each, each + page)) return false;
    }
    return true;
  }

  struct Range {
    Address start, end;
    friend bool operator==(Range const&, Range const&) = default;
  };

  /// Memory that has moved to `range`.
  struct Arrived {
    Range range;
    std::uint32_t number;
  };

  // ---- the reader ----

  struct KernelEvent {
    Range range;
    Address to;   // its new address; 0: none
    bool stays;  // still mapped, without its contents
    friend bool operator==(KernelEvent const&, KernelEvent const&) = default;
  };

  [[noreturn]] void read(int file) noexcept {
    // This thread gets its own table of files, with no other files in it: the program may close files that it does not
    // know, and what then gets the number must not be read here. What the program closes must not stay open here.
    int const first = asked_file_ < 0 ? file : std::min(file, asked_file_), last = std::max(file, asked_file_);
    syscall(SYS_close_range, last + 1, ~0U, CLOSE_RANGE_UNSHARE);
    if (last - first > 1) syscall(SYS_close_range, first + 1, last - 1, 0);
    if (first > 0) syscall(SYS_close_range, 0, first - 1, 0);
    reads_.test_and_set(std::memory_order_release);
    reads_.notify_one();
    for (;;) {
      pollfd ready{file, POLLIN, 0};
      if (poll(&ready, 1, -1) < 0) continue;
      if ((ready.revents & POLLIN) == 0) stop();
      pending_.fetch_add(batch, std::memory_order_seq_cst);  // before the first read, which lets munmap return
      take(file);
      bool wants_undo = false;
      {
        std::lock_guard const guard(listeners_mutex_);
        for (std::size_t i = 0; i < event_count_; ++i) {  // which grows meanwhile
          KernelEvent event;
          do {
            event = events_[i];
            auto const [start, end] = event.range;
            if (event.to != 0) {
              arrive(file, event.to, end - start);
              for_each_listener(file, [=](auto& each) { return each.try_invalidate(event.to, end - start); });  // what was there
              wants_undo = true;
            }
            if (!event.stays) mark_gone(file, start, end, event.to == 0);
            if (event.to != 0) for_each_listener(file, [=](auto& each) { return each.try_move(start, end - start, event.to); });
            wants_undo |= for_each_listener(file, [=](auto& each) { return each.try_invalidate(start, end - start); });
          } while (event != events_[i]);
        }
      }
      event_count_ = 0;
      pending_.fetch_add(batch, std::memory_order_seq_cst);
      if (wants_undo) wake(undo_wanted_);
    }
  }

  std::unique_lock<std::mutex> ranges_for_reader(int file) noexcept {
    std::unique_lock guard(ranges_mutex_, std::defer_lock);
    while (!guard.try_lock()) {
      take(file);  // its holder may be waiting in munmap
      sched_yield();
    }
    return guard;
  }

  void mark_gone(int file, Address start, Address end, bool unmapped) noexcept {
    auto const guard = ranges_for_reader(file);
    try {
      pages_.mark_gone(start, end, unmapped);
    } catch (std::bad_alloc const&) {  // `unwatch` ends the kernel's watch there, whatever memory it is of
    }
  }

  /// Memory that has moved is watched there until the drain thread ends that. What was there is gone.
  void arrive(int file, Address to, std::uint64_t size) noexcept {
    auto const guard = ranges_for_reader(file);
    if (arrived_count_ == arrived_.size() || !has_kernel_watch(to, to + page)) return;
    if (++arrivals_ == 0) ++arrivals_;
    try {
      pages_.mark_arrived(to, to + size, arrivals_);
      arrived_[arrived_count_++] = {{to, to + size}, arrivals_};
    } catch (std::bad_alloc const&) {  // it stays watched
    }
  }

  template <class Tell>
  bool for_each_listener(int file, Tell&& tell) noexcept {
    bool wants_undo = false;
    for (InvalidationListener* listener = listeners_; listener != nullptr; listener = listener->next_) {
      std::optional<bool> wish;
      while (!(wish = tell(*listener))) {
        take(file);  // the holder of a lock of the listener may be waiting in munmap
        sched_yield();
      }
      wants_undo |= *wish;
    }
    return wants_undo;
  }

  /// Read all events, so that no caller of munmap waits. An event for which there is no room enlarges the last range,
  /// which is then no longer reported as moved or unmapped, only as invalidated.
  void take(int file) noexcept {
    uffd_msg message;
    while (::read(file, &message, sizeof message) == sizeof message) {
      Range range;
      Address to = 0;
      bool const stays = message.event == UFFD_EVENT_REMOVE;
      if (message.event == UFFD_EVENT_UNMAP || message.event == UFFD_EVENT_REMOVE) {
        range = {message.arg.remove.start, message.arg.remove.end};
      } else if (message.event == UFFD_EVENT_REMAP) {
        range = {message.arg.remap.from, message.arg.remap.from + message.arg.remap.len};
        to = message.arg.remap.to;
      } else {
        continue;
      }
      if (event_count_ < events_.size()) {
        events_[event_count_++] = {range, to, stays};
      } else {
        KernelEvent& last = events_.back();
        Range all = last.range;
        auto const include = [&all](Address start, std::uint64_t size) {
          all = {std::min(all.start, start), std::max(all.end, start + size)};
        };
        std::uint64_t const size = range.end - range.start;
        if (last.to != 0) include(last.to, last.range.end - last.range.start);  // what was there is gone too
        if (to != 0) include(to, size);
        include(range.start, size);
        last = {all, 0, true};
      }
    }
  }

  /// The program has closed the file, as one that closes all files does: from now on nothing is reported.
  [[noreturn]] void stop() noexcept {
    open_file_.store(-1, std::memory_order_release);
    for (;;) pause();
  }

  // ---- calls that are seen ----

  /// While it exists, no listener of the list is destroyed.
  class Walk {
   public:
    explicit Walk(Watch& watch) noexcept : watch_(watch) { ++watch_.walkers_; }
    ~Walk() { --watch_.walkers_; }
    Walk(Walk const&) = delete;

   private:
    Watch& watch_;
  };

  /// Notify the listeners; false if one could not be notified. `tries` 0: as often as it takes.
  bool notify_listeners(Range range, bool& wants_undo, int tries) noexcept {
    Walk const walk(*this);
    std::uint64_t const size = range.end - range.start;
    for (InvalidationListener* listener = listeners_; listener != nullptr; listener = listener->next_) {
      if (!listener->may_have(range.start, size)) continue;
      for (int tried = 1;; ++tried) {
        if (auto const wish = listener->try_invalidate(range.start, size)) {
          wants_undo |= *wish;
          break;
        }
        if (tried == tries) return false;
        sched_yield();
      }
    }
    return true;
  }

  /// Post a range to the notifier. Until it has notified all listeners, `has_pending` makes lookups wait.
  void post(Range range) noexcept {
    if (!notifier_) return;  // its thread could not be started
    lock_posted();
    if (posted_count_ < posted_.size()) {
      ++pending_;
      posted_[posted_count_++] = range;
    } else {
      Range& last = posted_.back();
      last = {std::min(last.start, range.start), std::max(last.end, range.end)};
    }
    posted_lock_.clear(std::memory_order_release);
    wake(tell_wanted_);
  }

  void lock_posted() noexcept {
    while (posted_lock_.test_and_set(std::memory_order_acquire)) sched_yield();
  }

  [[noreturn]] void tell_posted() noexcept {
    for (std::uint32_t done = 0;;) {
      tell_wanted_.wait(done, std::memory_order_acquire);
      done = tell_wanted_.load(std::memory_order_acquire);
      for (;;) {
        lock_posted();
        bool const any = posted_count_ != 0;
        Range const range = any ? posted_[--posted_count_] : Range{};
        posted_lock_.clear(std::memory_order_release);
        if (!any) break;
        bool wants_undo = false;
        notify_listeners(range, wants_undo, 0);
        --pending_;
        if (wants_undo) wake(undo_wanted_);
      }
    }
  }

  static void wake(std::atomic<std::uint32_t>& word) noexcept {
    word.fetch_add(1, std::memory_order_release);
    word.notify_one();
  }

  // ---- the drain thread ----

  [[noreturn]] void undo() noexcept {
    for (std::uint32_t done = 0;;) {
      undo_wanted_.wait(done, std::memory_order_acquire);
      done = undo_wanted_.load(std::memory_order_acquire);
      std::size_t const arrived = arrived_count();
      await_pending();  // the listeners have been notified of these moves; once they have drained, none relies on it
      std::unique_lock guard(listeners_mutex_);
      for (InvalidationListener* listener = listeners_; listener != nullptr; listener = undo_next_) {
        undo_next_ = listener->next_.load();
        if (!listener->drained_by_thread_) continue;
        listener->draining_ = true;
        guard.unlock();
        try {
          listener->drain_invalidations();
        } catch (...) {  // the next thread that finds the region tries again
        }
        guard.lock();
        listener->draining_ = false;
      }
      guard.unlock();
      release(arrived);
    }
  }

  std::size_t arrived_count() noexcept {
    std::lock_guard const guard(ranges_mutex_);
    return arrived_count_;
  }

  /// End the watch of the first `count` of those that have arrived, as `unwatch` does. Not if the kernel also watches
  /// what follows, such as pages that the move has added: two parts would be two mappings, which the program could not
  /// move together.
  void release(std::size_t count) noexcept {
    await_posted();
    std::lock_guard const guard(ranges_mutex_);
    for (auto const& [range, number] : std::span(arrived_).first(count)) {
      auto const [start, end] = range;
      if (!pages_.all_arrived(start, end, number) || !has_kernel_watch(start, start + page)) continue;
      if (has_kernel_watch(end, end + page)) continue;
      pages_.end_arrived(start, end);
      end_kernel_watch(start, end);
    }
    std::copy(arrived_.begin() + count, arrived_.begin() + arrived_count_, arrived_.begin());
    arrived_count_ -= count;
  }

  std::mutex ranges_mutex_;
  bool tried_ = false;
  int file_ = -1;
  FileIdentity identity_;
  std::string problem_;
  int asked_file_ = -1;  // another userfaultfd, by which nothing is watched: see `intact`
  FileIdentity asked_identity_;
  PageCounts pages_;
  std::size_t ranges_ = 0;
  std::array<Arrived, most_arrived> arrived_;  // and still watched
  std::size_t arrived_count_ = 0;
  std::uint32_t arrivals_ = 0;

  std::mutex listeners_mutex_;
  std::atomic<InvalidationListener*> listeners_ = nullptr;
  InvalidationListener* undo_next_ = nullptr;  // of the drain thread, which releases the mutex meanwhile
  std::atomic<int> walkers_ = 0;

  std::atomic<int> open_file_ = -1;
  std::atomic_flag reads_;  // the reader has its own table of files
  std::atomic<std::uint32_t> undo_wanted_ = 0;

  std::atomic<bool> notifier_ = false;
  std::atomic_flag posted_lock_;
  std::array<Range, 64> posted_;
  std::size_t posted_count_ = 0;
  std::atomic<std::uint32_t> tell_wanted_ = 0;

  // Used by the reader only.
  std::array<KernelEvent, 1024> events_;
  std::size_t event_count_ = 0;
};

/// Never destroyed: its threads run until the process ends.
Watcher& process_watcher() {
  return Only<Watch, Subsystem::watch>::get([] {
    return std::unique_ptr<Watch>(new Watch);  // does not zero its arrays
  });
}

}  // namespace pinning
