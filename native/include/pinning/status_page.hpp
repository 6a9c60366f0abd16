// SPDX-License-Identifier: Apache-2.0
// What a process has locked, for other processes to read: `pinning top`.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "budget.hpp"
#include "locker.hpp"
#include "pinning.h"

namespace pinning {

/// In a memfd of the process, named "pinning-status", which others find under /proc/PID/fd and can read while the
/// process hangs. Readers copy it, because words change meanwhile; they skip a slot whose `start` has changed.
///
/// pinning/cli/status.py reads it by these offsets.
struct StatusPage {
  static constexpr std::uint64_t the_magic = 0x0031'4e49'5049'4e50;  // "PNIPIN1"
  static constexpr std::uint32_t slots = 4096, paths = 4;

  struct Slot {
    std::atomic<std::uint64_t> start;  // 0: empty
    std::atomic<std::uint64_t> size;   // bytes
    std::int64_t since;                // nanoseconds since 1970
    char device[23];
    std::atomic<bool> idle;  // registered, with no lock
    char owner[48];  // the type of what was locked; empty if not given
    char site[160];  // where in the program
  };
  static_assert(sizeof(Slot) == 256);

  std::atomic<std::uint64_t> magic;
  std::uint32_t version, slot_count;
  std::uint64_t process;
  std::int64_t begun;                       // nanoseconds since 1970
  std::atomic<std::uint64_t> moved[paths];  // bytes, by path: direct, staged, plain, small
  std::atomic<std::uint64_t> locked, calls, unlisted;  // bytes locked; vendor locks so far; locks without a slot
  Budget::Shown budget;                                // of the process
  std::atomic<std::uint64_t> by_peers;  // bytes of `moved` that went over the links of peers
  std::uint64_t reserved[15];
  Slot slot[slots];
};
static_assert(offsetof(StatusPage, moved) == 32 && offsetof(StatusPage, budget) == 88 && offsetof(StatusPage, slot) == 256);

/// The page of this process. It is in private memory until the first lock or `show_status`.
PINNING_API StatusPage& status_page() noexcept;
PINNING_API void show_status() noexcept;

/// How bytes are copied, in the order of `moved`.
enum class CopyPath : std::uint8_t { direct, staged, plain, small };  // small: the driver's copy too

inline void count_moved(CopyPath path, std::uint64_t size) noexcept {
  status_page().moved[static_cast<int>(path)].fetch_add(size, std::memory_order_relaxed);
}

/// Set the owner of a range, and where in the program it was locked, for the locks in it. Texts are cut to fit.
PINNING_API void describe_in_status(Address start, std::uint64_t size, char const* owner, char const* site) noexcept;

/// The locker of a device, with its locks listed in the page.
class PINNING_API ListedLocker : public Locker {
 public:
  /// `calls` must outlive this.
  ListedLocker(Locker& calls, char const* device) noexcept : calls_(calls), device_(device) {}

  Address lock(Address ptr, std::uint64_t size, LockOptions options) override;
  void unlock(Address ptr) override;
  void forget(Address ptr, Span gone) override;
  void note_idle(Address ptr, std::uint64_t size, bool idle) noexcept override;
  void drain_invalidations() override { calls_.drain_invalidations(); }
  std::optional<Pinned> is_pinned(Address ptr) override { return calls_.is_pinned(ptr); }
  CoherenceSupport coherence() const noexcept override { return calls_.coherence(); }
  void after_fork() override { calls_.after_fork(); }

 private:
  void leave(Address ptr) noexcept;

  Locker& calls_;
  char const* device_;
};

}  // namespace pinning
