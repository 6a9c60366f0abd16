// SPDX-License-Identifier: Apache-2.0
// Calls by which a program frees memory, or gets other pages at the same addresses.
#pragma once

#include "range.hpp"

namespace pinning::tool {

/// Is notified before memory goes, while `this_process.listener` is this.
class MemoryListener {
 public:
  /// Whether some of the range may be locked. Fast, and without a system call: every `free` asks.
  virtual bool may_meet(Range const& range) const noexcept = 0;
  /// The range is about to go.
  virtual void freed(Range const& range) = 0;

 protected:
  ~MemoryListener() = default;
};

/// Whether the functions of hooks.cpp are those that the program calls.
bool frees_are_seen() noexcept;

}  // namespace pinning::tool
