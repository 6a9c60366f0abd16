// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "errors.hpp"

namespace pinning {

/// A library that registers all memory that a map has its vendor lock, such as a network library. A map calls it from
/// any thread, several at once, and never under a lock of its own. What it throws reaches the map's caller unchanged.
class Registrar {
 public:
  virtual ~Registrar() = default;

  /// What tells it from the others of a map.
  virtual void const* self() const noexcept { return this; }

  /// The most bytes that it takes at once; 0: any.
  virtual std::uint64_t piece() const noexcept { return 0; }

  /// Register a locked range; returns a handle for `remove`. If it throws, nothing is registered.
  virtual void* add(Address ptr, std::uint64_t size) = 0;

  /// Undo the `add` that returned this handle. The memory is still locked, unless it has been unmapped. If it throws,
  /// it can be called again.
  virtual void remove(void* handle) = 0;

  /// Registrations, and threads about to use it; counted by the map, which destroys it only when this is 0.
  std::atomic<std::size_t> uses = 0;
};

/// The registration of a range, or of a piece of it.
struct Registration {
  Registrar* with;
  void* handle;
};

}  // namespace pinning
