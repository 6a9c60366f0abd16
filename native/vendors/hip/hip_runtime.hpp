// SPDX-License-Identifier: Apache-2.0
// The HIP runtime, loaded at first use.
#pragma once

#include "../streams.hpp"
#include "hip_abi.hpp"

namespace pinning::hip {

enum { PINNING_HIP_CONSTANTS(PINNING_CONSTANT) };

/// This vendor's place is a device, by its index.
class Runtime : public Functions, public StreamVendor {
 public:
  /// Loads and starts the runtime once; tries again after a failure. Throws Unavailable.
  static Runtime const& get();
  /// Needs no GPU.
  static VendorLibrary library();

  VendorCall failed(std::string function, int code, std::string advice = "") const override;
  Where enter(Where device) const override;
  void leave(Where before) const noexcept override;
  void forget_error() const noexcept override;

  int count = 0;  // devices

 private:
  Runtime();
  void start();

  Library library_;
};

}  // namespace pinning::hip
