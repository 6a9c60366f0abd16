// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "errors.hpp"

namespace pinning {

/// A library that is told of all memory that a map has its vendor lock, such as a network library. A map calls it from any
/// thread, several at a time, and never under a lock of its own. What it throws reaches the map's caller unchanged.
class Registrar {
 public:
  virtual ~Registrar() = default;

  /// The most bytes that it takes at once; 0: any.
  virtual std::uint64_t piece() const noexcept { return 0; }

  /// Takes note of a range that is locked; what it knows that by. When it throws, it has not.
  virtual void* add(Address ptr, std::uint64_t size) = 0;

  /// Forgets what `add` gave that for. The memory is still locked, unless it has been unmapped. When it throws, it can be
  /// called again.
  virtual void remove(void* known_as) = 0;

  /// How much it knows, or is about to be told: the map's own account. It goes when that is nothing.
  std::atomic<std::size_t> uses = 0;
};

/// Of a range, or of a piece of it.
struct Registration {
  Registrar* with;
  void* known_as;
};

}  // namespace pinning
