// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pinning/pinned_map.hpp>

/// A vendor that locks nothing, so that what is measured is the map.
class NoVendor : public pinning::Locker {
 public:
  pinning::Address lock(pinning::Address ptr, std::uint64_t, pinning::LockOptions) override { return ptr; }
  void unlock(pinning::Address) override {}
  std::optional<pinning::Pinned> is_pinned(pinning::Address) override { return std::nullopt; }
};
