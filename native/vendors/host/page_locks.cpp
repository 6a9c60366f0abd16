// SPDX-License-Identifier: Apache-2.0
#include "page_locks.hpp"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <memory>
#include <span>

#include "../../base/mappings.hpp"
#include "../../base/system_call.hpp"

namespace pinning {

namespace {

Address const page = static_cast<Address>(sysconf(_SC_PAGESIZE));

int lock_pages(Address start, Address end) {
  return mlock(reinterpret_cast<void*>(start), end - start) == 0 ? 0 : errno;
}

/// Whether mlock, of whomever, has locked any of these pages. MS_ASYNC writes nothing.
bool any_locked(Address start, Address end) {
  return msync(reinterpret_cast<void*>(start), end - start, MS_ASYNC | MS_INVALIDATE) != 0 && errno == EBUSY;
}

/// How often munlock is repeated with the current mappings before its error is reported.
constexpr int most_looks = 16;

/// Returns 0 or errno. Unmapped pages need no munlock, but it stops at the first, and other threads unmap and map while
/// this reads the mappings: memory mapped since then has no lock that must be undone.
int unlock_pages(Address start, Address end) {
  auto const unlock = [](Address from, Address to) { return munlock(reinterpret_cast<void*>(from), to - from) == 0; };
  if (unlock(start, end)) return 0;
  int error = errno;
  try {
    for (int look = 0; look < most_looks && error == ENOMEM; ++look) {
      auto const found = mappings(start, end - start);
      error = 0;
      for (auto const& mapping : found) {
        if (!unlock(std::max(start, mapping.start), std::min(end, mapping.end))) error = errno;
      }
    }
  } catch (std::exception const&) {  // the mappings cannot be read
  }
  return error;
}

/// Parses the first line of a file that matches `format`; false if none does.
template <class... Numbers>
bool scan(char const* path, char const* format, Numbers*... numbers) {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> const file(std::fopen(path, "re"), std::fclose);
  char line[256];
  while (file && std::fgets(line, sizeof line, file.get()) != nullptr) {
    if (std::sscanf(line, format, numbers...) == sizeof...(numbers)) return true;
  }
  return false;
}

/// Whether RLIMIT_MEMLOCK does not apply. Root in an unprivileged container has CAP_IPC_LOCK to no effect.
bool above_the_limit() {
  constexpr std::uint64_t cap_ipc_lock = 1 << 14;
  std::uint64_t capabilities = 0, first = 0, outside = 0, count = 0;
  return scan("/proc/self/status", "CapEff: %" SCNx64, &capabilities) && (capabilities & cap_ipc_lock) != 0 &&
         scan("/proc/self/uid_map", "%" SCNu64 "%" SCNu64 "%" SCNu64, &first, &outside, &count) && outside == 0 &&
         count == 0xFFFFFFFF;
}

/// Throws LockLimit if RLIMIT_MEMLOCK is why `size` more bytes could not be locked.
void check_limit(std::uint64_t size, std::string const& where, int code) {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || above_the_limit()) return;
  std::uint64_t kilobytes = 0;
  scan("/proc/self/status", "VmLck: %" SCNu64, &kilobytes);
  std::uint64_t const used = kilobytes * 1024;
  if (used + size <= limit.rlim_cur) return;
  std::string const remedy = limit.rlim_max == limit.rlim_cur
                                 ? "sudo prlimit --memlock=unlimited --pid $$"
                             : limit.rlim_max == RLIM_INFINITY ? "ulimit -l unlimited"
                                                               : "ulimit -l " + std::to_string(limit.rlim_max / 1024);
  throw LockLimit(failed_call("mlock", code,
                              "RLIMIT_MEMLOCK allows " + std::to_string(limit.rlim_cur) + " bytes, " +
                                  std::to_string(used) + " are locked, and " + where +
                                  " is more than what is left; to raise it: " + remedy +
                                  "  # in the shell that starts the program")
                      .text());
}

[[noreturn]] void refuse(Address start, std::uint64_t size, int code) {
  std::string const where = describe(start, size);
  if (!all_mapped(start, size)) {
    throw VendorError(failed_call("mlock", code, "some of " + where + " is not mapped; was it freed?"));
  }
  if (code == ENOMEM || code == EPERM) check_limit(size, where, code);
  throw VendorError(failed_call("mlock", code,
                                "the kernel cannot bring " + where +
                                " into memory: memory is short, the mapping is not readable or reaches past the end "
                                "of its file, or the process has more mappings than vm.max_map_count allows"));
}

/// Predicates on a page's number of locks.
auto exactly(unsigned locks) {
  return [=](auto const& each) { return each.live == locks; };
}
constexpr auto locked = [](auto const& each) { return each.all != 0; };

/// The largest size with this bit width.
std::uint64_t largest_size(std::size_t width) { return width == 0 ? 0 : ~std::uint64_t{0} >> (64 - width); }

}  // namespace

/// While it exists, no other thread changes these pages.
class PageLocks::Change {
 public:
  Change(PageLocks& locks, Pages pages) : locks_(locks), pages_(pages) {
    std::unique_lock guard(locks_.mutex_);
    locks_.changed_.wait(guard, [&] { return !meets_another(); });
    next_ = locks_.changing_;
    locks_.changing_ = this;
  }
  ~Change() {
    std::lock_guard const guard(locks_.mutex_);
    Change** link = &locks_.changing_;
    while (*link != this) link = &(*link)->next_;
    *link = next_;
    locks_.changed_.notify_all();
  }
  Change(Change const&) = delete;

 private:
  bool meets_another() const noexcept {
    for (Change const* each = locks_.changing_; each != nullptr; each = each->next_) {
      if (each->pages_.start < pages_.end && pages_.start < each->pages_.end) return true;
    }
    return false;
  }

  PageLocks& locks_;
  Pages const pages_;
  Change* next_ = nullptr;
};

PageLocks::~PageLocks() {
  if (listens_) process_watcher().remove(*this);
}

/// Called by each `lock`, so that every process registers its own listener, forked children too.
void PageLocks::listen() {
  if (!listens_.exchange(true)) process_watcher().add(*this, true);
}

void PageLocks::lock(Range range) {
  listen();
  drain_invalidations();
  Pages const pages = pages_of(range);
  Entry entry = entry_for(range, pages);
  Change const change(*this, pages);
  std::uint64_t const size = pages.end - pages.start;
  // If the program itself has locked some of them, a refusal must not undo that. At a hole, mlock fails with the pages
  // before it locked, beyond RLIMIT_MEMLOCK with none, and if it cannot bring them into memory, with all.
  auto const finds_locked = [](Pages run) { return int{any_locked(run.start, run.end)}; };
  auto const finds_unlocked = [](Pages run) {
    while (run.start < run.end && any_locked(run.start, run.start + page)) run.start += page;
    return int{run.start < run.end};
  };
  bool const has_others = each_run(pages, exactly(0), finds_locked) != 0;
  if (has_others && !all_mapped(pages.start, size)) refuse(pages.start, size, ENOMEM);
  // Already locked pages too: their memory may have been unmapped, which unlocked it, and mapped again.
  if (int const code = lock_pages(pages.start, pages.end); code != 0) {
    if (!has_others || each_run(pages, exactly(0), finds_unlocked) == 0) {
      each_run(pages, exactly(0), [](Pages run) {  // some may be locked by now
        unlock_pages(run.start, run.end);
        return 0;
      });
    }
    refuse(pages.start, size, code);
  }
  std::lock_guard const guard(mutex_);
  count(entry, pages);
  ranges_like(range.size).insert(std::move(entry.range));
}

void PageLocks::unlock(Address ptr, Span gone) {
  Entry entry;
  bool is_gone;
  {
    std::lock_guard const guard(mutex_);
    // Of old and new memory at the same addresses, which different maps may have locked, the caller means one.
    is_gone = gone.start < gone.end && take(gone_, ptr, entry);
    if (!is_gone && std::ranges::none_of(held_, [&](Held& held) { return take(held, ptr, entry); })) {
      is_gone = take(gone_, ptr, entry);
    }
  }
  if (entry.range.empty()) {
    char text[96];
    std::snprintf(text, sizeof text, "no range that starts at 0x%" PRIx64 " is locked by mlock", ptr);
    throw NotLocked(text);
  }
  Range const range = entry.range.value();
  Pages const pages = pages_of(range);
  Change const change(*this, pages);
  auto const what_is_there = [gone](auto&& act) {
    return [gone, act](Pages run) {
      Pages const parts[] = {{run.start, std::min(run.end, gone.start)}, {std::max(run.start, gone.end), run.end}};
      int code = 0;
      for (Pages const& part : parts) {
        if (code == 0 && part.start < part.end) code = act(part.start, part.end);
      }
      return code;
    };
  };
  auto const wanted = exactly(is_gone ? 0 : 1);
  int const code = each_run(pages, wanted, what_is_there(unlock_pages));
  // `try_move` must still find the counts of memory that moved just before.
  if (gone.start < gone.end) process_watcher().await_quiet(range.start, range.size);
  if (code != 0) {
    each_run(pages, wanted, what_is_there([](Address start, Address end) {  // some may be unlocked by now
      lock_pages(start, end);
      return 0;
    }));
  }
  {
    std::lock_guard const guard(mutex_);
    if (code == 0) {
      uncount(entry, pages, is_gone);
    } else {
      (is_gone ? gone_ : ranges_like(range.size)).insert(std::move(entry.range));
    }
  }
  if (code != 0) throw VendorError(failed_call("munlock", code, "the range is still locked; try again"));
}

void PageLocks::forget(Range range) {
  Entry entry;
  {
    std::lock_guard const guard(mutex_);
    Held& held = ranges_like(range.size);
    auto const entry_of_range = held.find(range);
    if (entry_of_range == held.end()) return;  // another thread has unlocked it
    entry.range = held.extract(entry_of_range);
  }
  Pages const pages = pages_of(range);
  Change const change(*this, pages);
  std::lock_guard const guard(mutex_);
  uncount(entry, pages);
}

std::optional<PageLocks::Range> PageLocks::around(Address ptr) {
  std::lock_guard const guard(mutex_);
  for (std::size_t width = held_.size(); width-- > 0;) {
    Held const& held = held_[width];
    std::uint64_t const reach = largest_size(width);
    std::optional<Range> largest;
    for (auto next = held.upper_bound(Range{ptr, ~std::uint64_t{0}}); next != held.begin();) {
      Range const& range = *--next;
      std::uint64_t const offset = ptr - range.start;
      if (offset >= reach) break;
      if (offset < range.size && (!largest || range.size > largest->size)) largest = range;
    }
    if (largest) return largest;
  }
  return std::nullopt;
}

std::optional<bool> PageLocks::try_move(Address ptr, std::uint64_t size, Address to) noexcept {
  std::unique_lock const guard(mutex_, std::try_to_lock);
  if (!guard) return std::nullopt;
  Address const end = ptr + size;
  auto const there = [&](Pages pages, bool grows) {
    return Moved{{to + (pages.start - ptr), to + (pages.end - ptr)}, grows || pages.end == end, ++moves_};
  };
  for (Moved& each : std::span(moved_).first(moved_count_)) {  // moved again before it was unlocked
    Pages const part{std::max(ptr, each.pages.start), std::min(end, each.pages.end)};
    if (part == each.pages) {
      each = there(part, each.grows);
    } else if (part.start < part.end && moved_count_ < moved_.size()) {
      moved_[moved_count_++] = there(part, each.grows && part.end == each.pages.end);
    }
  }
  for (auto run = next_run(ptr, end, locked); run; run = next_run(run->end, end, locked)) {
    if (moved_count_ == moved_.size()) break;
    moved_[moved_count_++] = there(*run, false);
  }
  any_moved_ = moved_count_ != 0;
  return moved_count_ != 0;
}

std::optional<bool> PageLocks::try_invalidate(Address ptr, std::uint64_t size) noexcept {
  std::unique_lock const guard(mutex_, std::try_to_lock);
  if (!guard) return std::nullopt;
  auto const moved = std::span(moved_).first(moved_count_);
  auto const inside = [&](Moved const& each) { return ptr <= each.pages.start && each.pages.end <= ptr + size; };
  moved_count_ -= std::ranges::remove_if(moved, inside).size();
  for (std::size_t width = 0; width < held_.size(); ++width) {
    Held& held = held_[width];
    auto next = held.lower_bound(Range{ptr - std::min(ptr, largest_size(width)), 0});
    while (next != held.end() && next->start <= ptr + (size - 1)) {
      auto const range = next++;
      if (range->start + (range->size - 1) < ptr) continue;
      Pages const pages = pages_of(*range);
      for (auto step = steps_.find(pages.start); step->first != pages.end; ++step) --step->second.locks.live;
      gone_.insert(held.extract(range));
    }
  }
  return false;
}

/// Unlocks the pages beforehand: a refused call would leave them locked forever, and a move would lock them elsewhere.
void PageLocks::will_invalidate(Address ptr, std::uint64_t size) noexcept {
  each_run({ptr, ptr + size}, locked, [](Pages run) {
    munlock(reinterpret_cast<void*>(run.start), run.end - run.start);
    return 0;
  });
}

/// Memory that has moved stays in the list while it is being unlocked, so that `try_move` finds it if it moves again.
void PageLocks::drain_invalidations() {
  process_watcher().await_pending();
  while (any_moved_) {
    Moved moved;
    {
      std::lock_guard const guard(mutex_);
      if (moved_count_ == 0) {
        any_moved_ = false;
        return;
      }
      moved = moved_[moved_count_ - 1];
    }
    unlock_moved(moved);
    // It may have moved again just before, and the watcher's reader may not have reported that yet.
    process_watcher().await_quiet(moved.pages.start, moved.pages.end - moved.pages.start);
    std::lock_guard const guard(mutex_);
    auto const all = std::span(moved_).first(moved_count_);
    if (auto const done = std::ranges::find(all, moved); done != all.end()) *done = moved_[--moved_count_];
  }
}

/// The kernel has also locked the memory that the move added at the end. Locks that are still counted there belong to
/// what was there before the move: each later lock has waited until the list of moved memory is empty. If the memory
/// moves again just before, this unlocks what has moved here since, which is in the list too, or soon will be.
void PageLocks::unlock_moved(Moved const& moved) {
  Pages pages = moved.pages;
  if (moved.grows) pages.end = process_watcher().end_of_added(pages.end);
  Change const change(*this, pages);
  {
    std::lock_guard const guard(mutex_);
    auto const all = std::span(moved_).first(moved_count_);
    if (std::ranges::find(all, moved) == all.end()) return;  // another thread was first, or it has moved again
  }
  unlock_pages(pages.start, pages.end);
}

PageLocks::Pages PageLocks::pages_of(Range range) {
  if (range.size == 0) throw InvalidRange("0 bytes cannot be locked; give at least one");
  Pages const pages{range.start & -page, ((range.start + (range.size - 1)) & -page) + page};
  if (pages.end <= pages.start) refuse(range.start, range.size, ENOMEM);
  return pages;
}

PageLocks::Entry PageLocks::entry_for(Range range, Pages pages) {
  Held one{range};
  Steps two{{pages.start, {}}, {pages.end, {}}};
  Entry entry;
  entry.range = one.extract(one.begin());
  entry.start = two.extract(two.begin());
  entry.end = two.extract(two.begin());
  return entry;
}

PageLocks::Held& PageLocks::ranges_like(std::uint64_t size) { return held_[std::bit_width(size)]; }

void PageLocks::count(Entry& entry, Pages pages) {
  auto const start = step_at(pages.start, entry.start);
  auto const end = step_at(pages.end, entry.end);
  ++start->second.borders;
  ++end->second.borders;
  for (auto step = start; step != end; ++step) ++step->second.locks.all, ++step->second.locks.live;
}

void PageLocks::uncount(Entry& entry, Pages pages, bool is_gone) {
  auto const end = steps_.find(pages.end);
  for (auto step = steps_.find(pages.start); step != end; ++step) {
    --step->second.locks.all;
    step->second.locks.live -= !is_gone;
  }
  drop_border(pages.start, entry.start);
  drop_border(pages.end, entry.end);
}

PageLocks::Steps::iterator PageLocks::step_at(Address address, Steps::node_type& spare) {
  auto const next = steps_.lower_bound(address);
  if (next != steps_.end() && next->first == address) return next;
  if (next != steps_.begin()) spare.mapped().locks = std::prev(next)->second.locks;
  return steps_.insert(next, std::move(spare));
}

void PageLocks::drop_border(Address address, Steps::node_type& dropped) {
  auto const step = steps_.find(address);
  if (--step->second.borders == 0) dropped = steps_.extract(step);
}

template <class Wanted>
std::optional<PageLocks::Pages> PageLocks::next_run(Address from, Address end, Wanted&& wanted) const {
  auto next = steps_.upper_bound(from);
  Locks here = next == steps_.begin() ? Locks{} : std::prev(next)->second.locks;
  std::optional<Pages> found;
  while (from < end) {
    Address const until = next == steps_.end() ? end : std::min(next->first, end);
    if (wanted(here)) {
      found = Pages{found ? found->start : from, until};
    } else if (found) {
      break;
    }
    if (next != steps_.end()) here = next++->second.locks;
    from = until;
  }
  return found;
}

/// Take the smallest range that starts there; false if none does.
bool PageLocks::take(Held& held, Address ptr, Entry& entry) {
  auto const found = held.lower_bound(Range{ptr, 0});
  if (found == held.end() || found->start != ptr) return false;
  entry.range = held.extract(found);
  return true;
}

template <class Wanted, class Act>
int PageLocks::each_run(Pages pages, Wanted&& wanted, Act&& act) {
  for (;;) {
    std::optional<Pages> run;
    {
      std::lock_guard const guard(mutex_);
      run = next_run(pages.start, pages.end, wanted);
    }
    if (!run) return 0;
    if (int const code = act(*run); code != 0) return code;
    pages.start = run->end;
  }
}

}  // namespace pinning
