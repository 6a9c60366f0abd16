// SPDX-License-Identifier: Apache-2.0
// Locks: `lock_` is taken last, by the copy threads and by submitting threads, for some hundred instructions; nothing
// that could wait is called while it is held. The threads read a device's progress from words that it writes to pinned
// memory. So they call no driver, and need no other lock, no GIL and no other thread to make progress.
#include "copy_threads.hpp"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <mutex>
#include <pinning/status_page.hpp>
#include <utility>

#include "../base/processors.hpp"
#include "../base/spin_time.hpp"

namespace pinning {

namespace {

using namespace std::chrono_literals;

// A thread that finds no work spins for a while before it sleeps: waking it takes 50 us or more on a virtual machine.
constexpr auto longest_spin = 100us;
// Threads that spin at a time, besides the watching one: if more find no work, there are more than the bus keeps busy,
// and their spinning costs the program processor time. Threads that a copy has woken all spin until its first chunk.
constexpr unsigned most_spinning = 1;
// Pauses of the watching thread while the words do not change; they grow with the time without work.
constexpr auto shortest_nap = 20us, longest_nap = 200us;
// Unfinished copies of one ring that a search examines at most.
constexpr unsigned look_at = 4;
// A slice with more page faults than this has its copy populate the slices that follow. One fault may populate all of a
// slice that is written: a huge page.
constexpr long few_faults_to_device = 1, few_faults_to_host = 0;
// Limit of the wait for new memory to be populated; each thread clears some GB/s.
constexpr auto longest_populate = 50ms;

std::atomic<CopyThreads*> threads{nullptr};
std::atomic_flag starting = ATOMIC_FLAG_INIT;

char* memory_at(Address address) noexcept { return reinterpret_cast<char*>(address); }

/// Move bytes within host memory, or between it and a file.
void move_in_host(Transfer const& transfer, Range const& range, std::uint64_t inside, std::uint64_t size) noexcept {
  char* const host = memory_at(range.host + inside);
  char* const from = memory_at(range.from + inside);
  if (!transfer.file) {
    std::memmove(host, from, size);
  } else if (transfer.file.writes) {
    transfer.file.move(from, {range.host}, inside, size);
  } else {
    transfer.file.move(host, {range.from, range.row, range.pitch}, inside, size);
  }
}

}  // namespace

CopyThreads::CopyThreads() noexcept
    : spin_(usable_processors_once() > 2 ? Clock::duration(longest_spin) : Clock::duration(0)) {}

CopyThreads* CopyThreads::known() noexcept { return threads.load(std::memory_order_acquire); }

CopyThreads& CopyThreads::get(unsigned count) {
  if (CopyThreads* const started = known()) return *started;
  while (starting.test_and_set(std::memory_order_acquire)) sched_yield();
  CopyThreads* all = known();
  if (all == nullptr) {
    all = new (std::nothrow) CopyThreads;
    while (all != nullptr && all->count_ < std::max(1u, count) && all->start()) ++all->count_;
    threads.store(all, std::memory_order_release);
  }
  starting.clear(std::memory_order_release);
  if (all == nullptr) throw std::bad_alloc();
  return *all;
}

void CopyThreads::after_fork() noexcept {
  threads.store(nullptr);
  starting.clear();
}

/// Start a detached thread that takes no signals except SIGSEGV and SIGBUS of its own copies: the program's handler may
/// repair the page, and the copy continues.
bool CopyThreads::start() {
  sigset_t others, before;
  sigfillset(&others);
  sigdelset(&others, SIGSEGV);
  sigdelset(&others, SIGBUS);
  pthread_sigmask(SIG_SETMASK, &others, &before);
  pthread_t thread;
  auto const run = [](void* self) -> void* {
    static_cast<CopyThreads*>(self)->work();
    return nullptr;
  };
  bool const started = pthread_create(&thread, nullptr, run, this) == 0;
  if (started) pthread_detach(thread);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

void CopyThreads::begin(std::shared_ptr<Transfer> const& transfer, Ring& ring, StagingLimits const& limits) {
  unsigned wake = 0;
  {
    std::lock_guard const guard(lock_);
    auto const most = [&](unsigned given) { return std::max(1u, given > 0 ? given : limits.threads); };
    if (transfer->way != Way::fresh) {
      most_to_device_ = most(limits.threads_to_device), most_to_host_ = most(limits.threads_to_host);
    }
    bool const joins = ring.transfers.empty();
    if (joins) active_.push_back(&ring);
    try {
      ring.transfers.push_back(transfer);
    } catch (...) {
      if (joins) active_.pop_back();
      throw;
    }
    if (joins) count_devices();
    Way const way = transfer->way;
    bool const is_for_many = way == Way::to_device || way == Way::to_host || way == Way::fresh;
    if (is_for_many) {  // wake them now: that takes longer than the first chunk takes to become ready
      unsigned const most = most_one_way(*transfer);
      wake = most - std::min(most, available(*transfer));
    }
    transfer->ring = &ring;
    ring.next.store(transfer->end());
    advance(ring);  // the signal of a wait may have been given in the meantime
  }
  if (!watching_.load()) wake = std::max(wake, 1u);
  news_.ring(wake);
  arrivals_.ring(1);
}

void CopyThreads::abandon(Transfer& transfer) noexcept {
  std::unique_lock guard(lock_);
  if (!transfer.abandoned) {
    transfer.abandoned = true;
    for (std::size_t i = transfer.next; i < transfer.chunks.size(); ++i) {
      Chunk& chunk = transfer.chunks[i];
      chunk.left -= i == transfer.next ? std::min(chunk.left, std::max<std::uint64_t>(chunk.size, 1) - transfer.next_at)
                                       : chunk.left;
    }
    transfer.next = transfer.chunks.size();
    if (transfer.waiter != nullptr) pass(*std::exchange(transfer.waiter, nullptr));
    if (transfer.ring == nullptr) {
      calls_.ring(INT_MAX);
    } else if (transfer.moved != transfer.count) {
      advance(*transfer.ring);
    }
  }
  while (transfer.at_work > 0) {
    guard.unlock();
    sched_yield();
    guard.lock();
  }
}

void CopyThreads::bring_in(char* memory, std::uint64_t size, std::uint64_t slice) noexcept {
  try {
    Words words;
    Ring ring;
    ring.memory.ptr = reinterpret_cast<Address>(&words);
    auto const transfer = std::make_shared<Transfer>();
    transfer->way = Way::fresh;
    transfer->slice = slice;
    transfer->faults = true;
    transfer->ranges = {{0, reinterpret_cast<Address>(memory), 0}, {size, 0, 0}};
    transfer->chunks.push_back({0, size, nullptr, 0, false, size});
    transfer->count = 1;
    begin(transfer, ring, {});
    for (auto const end = Clock::now() + longest_populate; !moved(*transfer) && Clock::now() < end;) sched_yield();
    abandon(*transfer);
  } catch (std::bad_alloc const&) {
  }
}

bool CopyThreads::moved(Transfer const& transfer) noexcept {
  std::lock_guard const guard(lock_);
  return transfer.moved >= transfer.chunks.size();
}

bool CopyThreads::wait_for(Transfer& signal, std::shared_ptr<Transfer> const& waiter) noexcept {
  std::lock_guard const guard(lock_);
  if (signal.next == 1) return false;
  signal.waiter = waiter;
  return true;
}

void CopyThreads::give(Transfer& signal) noexcept {
  std::lock_guard const guard(lock_);
  pass(signal);
}

void CopyThreads::copy_in_call(Transfer& transfer) noexcept {
  {
    std::lock_guard const guard(lock_);
    if (transfer.abandoned) return;
    ++transfer.at_work;
  }
  transfer.for_each_range(0, transfer.chunks[0].size, [&](Range const& range, auto inside, auto, auto size) {
    move_in_host(transfer, range, inside, size);
  });
  std::lock_guard const guard(lock_);
  --transfer.at_work;
}

void CopyThreads::wait_in_call(Transfer& waiter) noexcept {
  for (;;) {
    std::uint32_t const seen = calls_.count();
    {
      std::lock_guard const guard(lock_);
      if (waiter.next == 1) return;
    }
    calls_.wait(seen);
  }
}

bool CopyThreads::left(Ring const& ring) noexcept {
  std::lock_guard const guard(lock_);
  return ring.transfers.empty();
}

bool CopyThreads::idle(Ring const& ring) noexcept {
  std::lock_guard const guard(lock_);
  std::uint32_t const next = ring.next.load();
  return ring.published == next && ring.words().taken.load(std::memory_order_acquire) == next;
}

void CopyThreads::work() noexcept {
  prctl(PR_SET_NAME, "pinning copies");
  prctl(PR_SET_TIMERSLACK, 1000);  // ns: naps are not prolonged
  bool watching = false, awaited = true;
  SpinTime quiet;  // the time without work
  Slice slice, done;
  for (bool faulted = false;;) {
    std::uint32_t const seen = news_.count(), seen_arrivals = arrivals_.count();
    bool found, more = false, pending;
    {
      std::lock_guard const guard(lock_);
      if (done.transfer != nullptr) finish(done, faulted);
      found = take(&slice);
      if (found && (watching || news_.sleeping() > 0)) more = take(nullptr);
      pending = !active_.empty();
    }
    done.transfer = nullptr;  // if this is the last reference, it is destroyed without the lock
    if (found) {
      if (watching || more) {
        if (watching) watching_.store(false);
        watching = false;
        news_.ring(more && spinning_.load() == 0 ? 1 : 0);  // it wakes the next one if there is still more
      }
      faulted = move(slice);
      done = std::move(slice);
      quiet.begin();
      awaited = false;
      continue;
    }
    if (pending && !watching) watching = !watching_.exchange(true);
    if (!pending && watching) {
      watching = false;
      watching_.store(false);
    }
    auto const idle = quiet.lasts();
    if (watching) {
      if (idle < spin_) {
        for (int i = 0; i < 64; ++i) relax();  // leave the lock to the threads that move slices
      } else {
        arrivals_.wait(seen_arrivals, std::clamp<std::chrono::nanoseconds>(idle / 16, shortest_nap, longest_nap));
        if (arrivals_.count() != seen_arrivals) quiet.begin();
      }
    } else if (idle < spin_ && (awaited || spinning_.load() < most_spinning)) {
      spinning_.fetch_add(1);
      for (int i = 0; i < 8 && news_.count() == seen; ++i) relax();
      while (news_.count() == seen && quiet.lasts() < spin_) {
        for (int i = 0; i < 32; ++i) relax();
      }
      spinning_.fetch_sub(1);
    } else {
      news_.wait(seen);
      quiet.begin();
      awaited = true;
    }
  }
}

/// (lock_) Take the next slice that can move, from the rings in turn; with null, only report whether there is one.
bool CopyThreads::take(Slice* slice) noexcept {
  for (std::size_t i = 0; i < active_.size();) {
    if (given(*active_[i])) {
      i = 0;  // rings may have left the list
    } else {
      ++i;
    }
  }
  std::size_t const count = active_.size();
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t const at = (turn_ + i) % count;
    if (!take_from(*active_[at], slice)) continue;
    if (slice != nullptr) turn_ = at + 1;
    return true;
  }
  return false;
}

/// (lock_) Give a signal, or end a wait for one.
void CopyThreads::pass(Transfer& transfer) noexcept {
  if (transfer.next == 1) return;
  transfer.next = 1;
  transfer.chunks[0].left = 0;
  std::shared_ptr<Transfer> const waiter = std::exchange(transfer.waiter, nullptr);
  if (transfer.ring != nullptr) {
    advance(*transfer.ring);
  } else {
    calls_.ring(INT_MAX);
  }
  if (waiter != nullptr) pass(*waiter);
}

/// (lock_) Give the ring's next signal if the device has reached it; returns whether it has.
bool CopyThreads::given(Ring& ring) noexcept {
  std::uint32_t const taken = ring.words().taken.load(std::memory_order_acquire);
  for (auto const& each : ring.transfers) {
    if (each->next == each->chunks.size()) continue;
    if (each->way != Way::signal || !reached(taken, each->base + 1)) return false;
    std::shared_ptr<Transfer> const signal = each;
    pass(*signal);
    return true;
  }
  return false;
}

/// (lock_) How many threads may move slices in the direction of this transfer. All of them may populate memory, write
/// files, and read files for several devices: the kernel does that work. Copies for several devices get half of the
/// threads of one for each.
unsigned CopyThreads::most_one_way(Transfer const& transfer) const noexcept {
  bool const by_kernel = transfer.faults || (transfer.file && (transfer.to_host() || devices_ > 1));
  if (by_kernel) return count_.load();
  unsigned const most = transfer.to_host() ? most_to_host_ : most_to_device_;
  return std::max(most, most * devices_ / 2);
}

/// (lock_) How many threads are awake and do not move slices in the other direction: they will look for work.
unsigned CopyThreads::available(Transfer const& transfer) const noexcept {
  unsigned const others = news_.sleeping() + (transfer.to_host() ? to_device_ : to_host_), count = count_.load();
  return count - std::min(count, others);
}

/// (lock_) Count the devices that have copies in progress, after `active_` has changed.
void CopyThreads::count_devices() noexcept {
  devices_ = 0;
  for (auto each = active_.begin(); each != active_.end(); ++each) {
    auto const has_blocks_of_same = [&](Ring const* one) { return one->size > 0 && one->device == (*each)->device; };
    if ((*each)->size > 0 && std::none_of(active_.begin(), each, has_blocks_of_same)) ++devices_;
  }
}

bool CopyThreads::take_from(Ring& ring, Slice* slice) noexcept {
  std::uint32_t const taken = ring.words().taken.load(std::memory_order_acquire);
  unsigned looked_at = 0;
  for (auto const& each : ring.transfers) {
    Transfer& transfer = *each;
    if (transfer.next == transfer.chunks.size()) continue;
    if (++looked_at > look_at) return false;
    Chunk const& chunk = transfer.chunks[transfer.next];
    std::uint32_t const number = transfer.base + static_cast<std::uint32_t>(transfer.next);
    switch (transfer.way) {
      case Way::to_device:
        if (!transfer.early &&
            !reached(ring.words().begun.load(std::memory_order_acquire), transfer.base + 1)) return false;
        if (!reached(taken, chunk.needs) || !reached(ring.published, chunk.needs)) return false;
        break;
      case Way::to_host:
      case Way::in_host:
        if (!reached(taken, number + 1)) continue;
        break;
      case Way::signal:
      case Way::wait:
        continue;
      case Way::fresh:
        break;
    }
    unsigned const at_work = transfer.to_host() ? to_host_ : to_device_, most = most_one_way(transfer);
    if (transfer.at_work >= transfer.most_at_work || at_work >= most) continue;
    if (slice == nullptr) return available(transfer) < most + most_spinning + 1;  // these, and one watches
    slice->transfer = each;
    slice->chunk = transfer.next;
    slice->at = transfer.next_at;
    slice->size = transfer.slice_at(chunk.at + transfer.next_at, chunk.size - transfer.next_at);
    slice->faults = transfer.faults;
    slice->watch = !transfer.faults && (transfer.to_host() ? transfer.may_populate() && transfer.next_at == 0
                                                           : !transfer.file && most_to_device_ < count_);
    transfer.next_at += slice->size;
    if (transfer.next_at == chunk.size) ++transfer.next, transfer.next_at = 0;
    ++transfer.at_work;
    ++(transfer.to_host() ? to_host_ : to_device_);
    return true;
  }
  return false;
}

/// (lock_) A slice is moved; `faulted`: its host memory was populated by that.
void CopyThreads::finish(Slice const& slice, bool faulted) noexcept {
  Transfer& transfer = *slice.transfer;
  transfer.faults = transfer.faults || faulted;
  --transfer.at_work;
  --(transfer.to_host() ? to_host_ : to_device_);
  Chunk& chunk = transfer.chunks[slice.chunk];
  chunk.left -= slice.size;
  if (chunk.left == 0) advance(*transfer.ring);
}

/// (lock_) Count the moved chunks up to the first that is not, and publish the count.
void CopyThreads::advance(Ring& ring) noexcept {
  std::uint32_t const before = ring.published;
  while (!ring.transfers.empty()) {
    Transfer& transfer = *ring.transfers.front();
    auto const moved = [&] { return transfer.moved == transfer.chunks.size() || transfer.chunks[transfer.moved].left == 0; };
    while (transfer.moved < transfer.count && moved()) ++transfer.moved, ++ring.published;
    if (transfer.moved < transfer.count) break;
    ring.transfers.pop_front();
  }
  if (ring.published != before) ring.words().moved.store(ring.published, std::memory_order_release);
  if (ring.transfers.empty() && std::erase(active_, &ring) > 0) count_devices();
}

/// Move a slice; returns whether its host memory faulted.
bool CopyThreads::move(Slice const& slice) const noexcept {
  Transfer const& transfer = *slice.transfer;
  Chunk const& chunk = transfer.chunks[slice.chunk];
  long const before = slice.watch ? minor_faults() : 0;
  transfer.for_each_range(chunk.at + slice.at, slice.size, [&](Range const& range, auto inside, auto at, auto size) {
    char* const host = memory_at(range.host + inside);
    if (slice.faults && transfer.to_host()) populate(host, size, PopulateTo::write);
    if (transfer.way == Way::in_host) return move_in_host(transfer, range, inside, size);
    if (transfer.way == Way::fresh) return touch(host, size);
    char* const block = chunk.block + (at - chunk.at);
    if (transfer.file) return transfer.file.move(block, {range.host, range.row, range.pitch}, inside, size);
    if (transfer.way == Way::to_host) return stream_copy(host, block, size);
    if (slice.faults) populate(host, size, PopulateTo::read);
    if (chunk.cold) {
      stream_copy(block, host, size);  // since an earlier copy the block may be dirty in another core's cache
    } else {
      std::memcpy(block, host, size);  // the device reads it from the cache, and it is soon overwritten
    }
  });
  if (transfer.file && !transfer.file.outcome->has_failed()) count_moved(CopyPath::staged, slice.size);
  return slice.watch && minor_faults() - before > (transfer.to_host() ? few_faults_to_host : few_faults_to_device);
}

}  // namespace pinning
