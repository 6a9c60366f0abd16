// SPDX-License-Identifier: Apache-2.0
// Host memory, by mlock, which works on whole pages and does not nest: one munlock undoes every mlock of a page. So a
// page that two locks share stays locked until the second one goes.
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <map>
#include <mutex>

#include "devices.hpp"
#include "mappings.hpp"

namespace pinning {

namespace {

struct Pages {
  Address start, end;
  bool meets(Pages const& other) const noexcept { return start < other.end && other.start < end; }
};

Address const page = static_cast<Address>(sysconf(_SC_PAGESIZE));

Pages pages_of(Address ptr, std::uint64_t size) { return {ptr & -page, ((ptr + (size - 1)) & -page) + page}; }

int lock_pages(Pages const& pages) {
  return mlock(reinterpret_cast<void*>(pages.start), pages.end - pages.start) == 0 ? 0 : errno;
}

int unlock_pages(Pages const& pages) {
  if (pages.start >= pages.end || munlock(reinterpret_cast<void*>(pages.start), pages.end - pages.start) == 0) return 0;
  int const error = errno;
  auto const found = mappings(pages.start, pages.end - pages.start);
  if (!gap(pages.start, pages.end - pages.start, found)) return error;
  // Pages that were unmapped took their lock with them, and only what is left of the range is still to be unlocked.
  for (auto const& mapping : found) {
    Pages const part{std::max(pages.start, mapping.start), std::min(pages.end, mapping.end)};
    if (int const again = unlock_pages(part); again != 0) return again;
  }
  return 0;
}

VendorCall failed(char const* function, int code, std::string advice) {
  char const* const name = code == EAGAIN   ? "EAGAIN"
                           : code == EINVAL ? "EINVAL"
                           : code == ENOMEM ? "ENOMEM"
                           : code == EPERM  ? "EPERM"
                                            : "unknown";
  return {function, code, name, std::move(advice)};
}

/// Bytes that this process has locked by now.
std::uint64_t locked_now() {
  unsigned long long kilobytes = 0;
  if (std::FILE* const status = std::fopen("/proc/self/status", "re")) {
    char line[256];
    while (std::fgets(line, sizeof line, status) != nullptr && std::sscanf(line, "VmLck: %llu", &kilobytes) != 1) {
    }
    std::fclose(status);
  }
  return kilobytes * 1024;
}

[[noreturn]] void refuse(Pages const& pages, int code) {
  std::uint64_t const size = pages.end - pages.start;
  std::string const where = describe(pages.start, size);
  if (gap(pages.start, size, mappings(pages.start, size))) {
    throw VendorError(failed("mlock", code, "some of " + where + " is not mapped; was it freed?"));
  }
  rlimit limit{};
  std::uint64_t const used = locked_now();
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && used + size > limit.rlim_cur) {
    throw LockLimit(failed("mlock", code, "RLIMIT_MEMLOCK allows " + std::to_string(limit.rlim_cur) + " bytes, " +
                                              std::to_string(used) + " are locked, and " + where +
                                              " is more than what is left; raise it with `ulimit -l unlimited`, or "
                                              "`sudo prlimit --memlock=unlimited --pid " +
                                              std::to_string(getpid()) + "`")
                        .text());
  }
  throw VendorError(failed("mlock", code,
                           "the kernel cannot bring " + where +
                               " into memory: memory is short, the mapping is not readable or reaches past the end of "
                               "its file, or the process has more mappings than vm.max_map_count allows"));
}

/// A change of a range waits for a change of the same pages to end, and for no other. The kernel is called without the
/// mutex, and what is held changes only after it has done its part.
class HostDevice : public LockingDevice {
 public:
  HostDevice() : LockingDevice("host:0") {}

  Address lock(Address ptr, std::uint64_t size, Wish) override {
    Pages const pages = pages_of(ptr, size);
    Change const change(*state_, pages);
    if (int const code = lock_pages(pages); code != 0) {
      unlock_pages(change.not_held_by_others(ptr));  // some of them may be locked by now
      refuse(pages, code);
    }
    std::lock_guard const guard(state_->mutex);
    state_->held[ptr] = size;
    return ptr;
  }

  void unlock(Address ptr) override {
    std::uint64_t size;
    {
      std::lock_guard const guard(state_->mutex);
      auto const found = state_->held.find(ptr);
      if (found == state_->held.end()) throw NotLocked("no range that starts at this address is locked by mlock");
      size = found->second;
    }
    Change const change(*state_, pages_of(ptr, size));
    Pages const own = change.not_held_by_others(ptr);
    if (int const code = unlock_pages(own); code != 0) {
      lock_pages(own);  // some of them may be unlocked by now
      throw VendorError(failed("munlock", code, "the range is still locked; try again"));
    }
    std::lock_guard const guard(state_->mutex);
    state_->held.erase(ptr);
  }

  std::optional<Pinned> is_pinned(Address ptr) override {
    std::lock_guard const guard(state_->mutex);
    auto const next = state_->held.upper_bound(ptr);
    if (next == state_->held.begin()) return std::nullopt;
    auto const& [base, size] = *std::prev(next);
    if (ptr - base >= size) return std::nullopt;
    return Pinned{base, size, base};
  }

  Grains grains() const noexcept override { return {.fine = true}; }

  void after_fork() override {
    state_.release();  // another thread may have been changing it
    state_ = std::make_unique<State>();
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<Pages> changing;
    std::map<Address, std::uint64_t> held;  // the ranges locked, which do not overlap: the map sees to that
  };

  /// While it lives, nobody else changes these pages.
  class Change {
   public:
    Change(State& state, Pages const& pages) : state_(state), pages_(pages) {
      std::unique_lock guard(state_.mutex);
      auto const meets = [&](Pages const& other) { return other.meets(pages_); };
      state_.changed.wait(guard, [&] { return std::ranges::none_of(state_.changing, meets); });
      state_.changing.push_back(pages_);
    }
    ~Change() {
      std::lock_guard const guard(state_.mutex);
      std::erase_if(state_.changing, [&](Pages const& each) { return each.start == pages_.start; });
      state_.changed.notify_all();
    }
    Change(Change const&) = delete;

    /// The pages of the range at `ptr` without a first and a last one that its neighbours hold as well.
    Pages not_held_by_others(Address ptr) const {
      std::lock_guard const guard(state_.mutex);
      Pages own = pages_;
      auto const next = state_.held.upper_bound(ptr);
      if (next != state_.held.end()) own.end = std::min(own.end, next->first & -page);
      auto const self_or_before = state_.held.lower_bound(ptr);
      if (self_or_before != state_.held.begin()) {
        auto const& [base, size] = *std::prev(self_or_before);
        own.start = std::max(own.start, pages_of(base, size).end);
      }
      return own;
    }

   private:
    State& state_;
    Pages const pages_;
  };

  std::unique_ptr<State> state_ = std::make_unique<State>();
};

}  // namespace

std::unique_ptr<VendorDevice> make_host(unsigned index) {
  if (index != 0) throw Unavailable("there is no host:" + std::to_string(index) + ": the host is host:0 alone");
  return std::make_unique<HostDevice>();
}

}  // namespace pinning
