// SPDX-License-Identifier: Apache-2.0
// The HIP runtime, as it is loaded at first use.
#pragma once

#include "../streams.hpp"
#include "hip_abi.hpp"

namespace pinning::hip {

enum { PINNING_HIP_CONSTANTS(PINNING_CONSTANT) };

/// What must be current for this vendor is a device, by its number.
class Runtime : public Functions, public StreamVendor {
 public:
  /// Loaded and started once; again after each failure. Throws Unavailable.
  static Runtime const& get();
  /// It needs no GPU.
  static VendorLibrary library();

  VendorCall failed(std::string function, int code, std::string advice = "") const override;
  Where enter(Where device) const override;
  void leave(Where before) const noexcept override;
  void forget_error() const noexcept override;

  int count = 0;  // of devices

 private:
  Runtime();
  void start();

  Library library_;
};

}  // namespace pinning::hip
