// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "locker.hpp"
#include "vendor.hpp"

namespace pinning {

/// Work for a queue. It keeps what it uses until it is destroyed, once it is complete.
class Operation {
 public:
  virtual ~Operation() = default;
  Operation(Operation const&) = delete;

  /// Submit it, once. Throws what the vendor throws.
  virtual void submit(VendorQueue& queue) = 0;
  /// Whether it keeps anything, so that it must not be destroyed before it is complete.
  virtual bool keeps_any() const noexcept { return true; }
  /// Whether a part of it may be in progress after `submit` has thrown.
  virtual bool outlasts_refusal() const noexcept { return false; }
  /// All host-readable memory that it writes, if that is known.
  virtual Span written() const noexcept = 0;
  virtual bool writes_unknown() const noexcept { return false; }
  /// Whether it keeps this very object, of a language that has a lane ask for its objects.
  virtual bool keeps(void const*) const noexcept { return false; }
  /// The device is lost: let those that wait for it by the host's memory go on.
  virtual void abandon() noexcept {}

 protected:
  Operation() = default;
};

}  // namespace pinning
