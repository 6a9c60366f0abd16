// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "errors.hpp"

namespace pinning {

/// A range that a vendor reports as pinned, and the device pointer of its base.
struct Pinned {
  Address base;
  std::uint64_t size;
  Address device_ptr;

  friend bool operator==(Pinned const&, Pinned const&) = default;
};

/// What the caller knows of the mapping under a range.
enum class Access : std::uint8_t { unknown, writable, read_only };

/// How fine-grained the coherence of locked memory is. Fine: host and running kernel see each other's writes. Coarse:
/// only once the kernel has ended. Unknown: neither is promised, or neither is requested.
enum class Coherence : std::uint8_t { unknown, fine, coarse };

class Locker;

/// What a caller knows of the memory and wants of its lock.
struct LockOptions {
  Access access = Access::unknown;
  Coherence coherence = Coherence::unknown;  // coarse: fine is not needed
  Locker* locker = nullptr;  // of a map of several devices: the one that is to lock; null: the map's own
};

/// What a vendor has; neither if it promises nothing.
struct CoherenceSupport {
  bool fine = false, coarse = false;

  /// What a lock gets: fine if the vendor has it, unless coarse is enough. Throws NotCoherent.
  Coherence choose(Coherence wanted) const {
    if (wanted == Coherence::fine && !fine) throw NotCoherent();
    if (coarse && (wanted == Coherence::coarse || !fine)) return Coherence::coarse;
    return fine ? Coherence::fine : Coherence::unknown;
  }
  /// What memory has, whichever owner has locked it: known only if the vendor has just one.
  Coherence only() const noexcept {
    return fine == coarse ? Coherence::unknown : fine ? Coherence::fine : Coherence::coarse;
  }
};

/// One device's vendor calls. A map makes them from any thread, several at once, and never while holding a lock of its
/// own. What they throw reaches the map's caller unchanged.
class Locker {
 public:
  virtual ~Locker() = default;

  /// Page-lock [ptr, ptr + size) and return its device pointer. Throws AlreadyPinned if the vendor reports that.
  /// `options.coherence` is what `coherence().choose` has returned.
  virtual Address lock(Address ptr, std::uint64_t size, LockOptions options) = 0;

  /// Undo the `lock` of the range that starts at `ptr`. If it throws, the range is still locked.
  virtual void unlock(Address ptr) = 0;

  /// The same if the memory in `gone` has been unmapped, discarded or replaced meanwhile: what is there now, if
  /// anything, stays as it is.
  virtual void forget(Address ptr, [[maybe_unused]] Span gone) { unlock(ptr); }

  /// Note that what is registered in [ptr, ptr + size) is, or is no longer, idle. Called with the map's mutex held.
  virtual void note_idle([[maybe_unused]] Address ptr, [[maybe_unused]] std::uint64_t size,
                         [[maybe_unused]] bool idle) noexcept {}

  /// Unlock what the locker itself knows to be invalidated: memory that has moved together with its lock.
  virtual void drain_invalidations() {}

  /// The pinned range around `ptr`, of any owner.
  virtual std::optional<Pinned> is_pinned(Address ptr) = 0;

  /// Always the same, and fast.
  virtual CoherenceSupport coherence() const noexcept { return {}; }

  /// Called in a forked child, where nothing is locked any more and no other thread runs; a thread of the parent may
  /// have been in the middle of any change.
  virtual void after_fork() {}
};

}  // namespace pinning
