// SPDX-License-Identifier: Apache-2.0
#pragma once

#if __cplusplus < 202002L
#error "pinning needs C++20: compile with -std=c++20"
#endif

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <utility>

#include "pinning.h"

namespace pinning {

using Address = std::uint64_t;

/// The bytes [start, end).
struct Span {
  Address start, end;

  friend bool operator==(Span const&, Span const&) = default;
};

/// The smallest range that holds both.
inline Span covering(Span one, Span other) noexcept {
  return {std::min(one.start, other.start), std::max(one.end - 1, other.end - 1) + 1};  // 0 is the top of all memory
}

inline void* pointer(Address address) noexcept { return reinterpret_cast<void*>(address); }

/// "0x7f..."
inline std::string describe(Address address) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(address));
  return text;
}

/// "[0x7f..., 0x7f...) (4096 bytes)"
inline std::string describe(Address start, std::uint64_t size) {
  char text[96];
  std::snprintf(text, sizeof text, "[0x%llx, 0x%llx) (%llu bytes)", static_cast<unsigned long long>(start),
                static_cast<unsigned long long>(start + size), static_cast<unsigned long long>(size));
  return text;
}

/// A range that cannot be locked: null, empty, past the top of the address space.
class InvalidRange : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// An argument that is wrong whatever is locked.
class InvalidArgument : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// An error of another language, which may keep all that it came through.
class ForeignError : public std::exception {
 public:
  /// Forget that, because the error is stored.
  virtual void forget_way() noexcept = 0;
};

/// The queue takes no work any more, or the pool gives no memory.
class Closed : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

/// What has pinned a range: locks, a registration, or others than this map.
enum class By : std::uint8_t { locks, owner, others };

inline constexpr char const* its_owner = "its owner, an arena, an allocation or a registration: close, free or unregister that";

/// A range that shares bytes with a region, or with what others have pinned, in a way that is not allowed.
class PartialOverlap : public InvalidRange {
 public:
  /// `all`: the range that covers the wanted one and the regions that it overlaps: `region`, and `more`.
  PartialOverlap(Span wanted, Span region, By by, Span all, std::size_t more = 0)
      : InvalidRange("the range " + said(wanted) + " overlaps the " + rule(region, by, all, more)),
        wanted(wanted), region(region), all(all) {}

  Span wanted, region, all;

 private:
  static std::string rule(Span region, By by, Span all, std::size_t more) {
    if (by == By::others) {
      return "range " + said(region) +
             ", which someone else has pinned; a lock must lie inside it or clear of it, a registration clear of it: lock "
             "the parts apart, or have its owner unpin it first (and refresh the map)";
    }
    std::string const regions = "locked region " + said(region) + (more > 0 ? " and " + std::to_string(more) + " more" : "") +
                                "; a lock must lie inside a locked region or clear of all, a registration clear of all: ";
    if (by == By::owner) return regions + "the first is locked by " + its_owner + " first, or lock the parts apart";
    return regions + "unlock " + (more > 0 ? "these" : "[" + describe(region.start) + ", " + describe(region.end) + ")") +
           (all == region ? " first" : ", then lock " + said(all));
  }
  static std::string said(Span range) { return describe(range.start, range.end - range.start); }
};

/// No region is locked there.
class NotLocked : public std::out_of_range {
 public:
  using std::out_of_range::out_of_range;
};

/// A region forbids this: there is still a lock in it, it is half unlocked, or it is not coherent.
class StillLocked : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// Coherence was required of a device that does not promise it.
class NotCoherent : public std::runtime_error {
 public:
  NotCoherent()
      : std::runtime_error("coherent=True, but this device does not promise that locked memory is coherent; lock with "
                           "coherent=None, and let host and kernel take turns") {}
};

/// A lock in pieces whose device pointers are not contiguous, so that no single one serves the range.
class NotContiguous : public std::runtime_error {
 public:
  NotContiguous() : std::runtime_error("the device pointers of the pieces are not contiguous; lock without `piece`") {}
};

/// For a Locker to throw, or to derive from: the vendor reports that some of the range is already pinned.
class AlreadyPinned : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A vendor call that failed: the function, the code and the vendor's name for it, advice, if there is any, and whether
/// it failed for lack of memory.
struct VendorCall {
  std::string function;
  long long code;
  std::string name;
  std::string advice;
  bool no_memory = false;

  std::string text() const {
    return function + " failed: " + name + " (" + std::to_string(code) + ")" + (advice.empty() ? "" : "; " + advice);
  }
};

class VendorError : public std::runtime_error {
 public:
  explicit VendorError(VendorCall failed) : std::runtime_error(failed.text()), call(std::move(failed)) {}
  VendorCall call;
};

class VendorAlreadyPinned : public AlreadyPinned {
 public:
  explicit VendorAlreadyPinned(VendorCall failed) : AlreadyPinned(failed.text()), call(std::move(failed)) {}
  VendorCall call;
};

/// Work that cannot be recorded into a graph was submitted to a queue under capture. The vendor was not called.
class GraphCapture : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The lock would exceed a limit of this machine or the budget of this process.
class LockLimit : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A driver, a library, a device or an interpreter is missing.
class Unavailable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace pinning
