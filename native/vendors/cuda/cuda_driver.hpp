// SPDX-License-Identifier: Apache-2.0
// The NVIDIA driver, loaded at first use.
#pragma once

#include "../streams.hpp"
#include "cuda_abi.hpp"

namespace pinning::cuda {

enum { PINNING_CUDA_CONSTANTS(PINNING_CONSTANT) };

/// This vendor's place is a context.
class Driver : public Functions, public StreamVendor {
 public:
  /// Loads and starts the driver once; tries again after a failure. Throws Unavailable.
  static Driver const& get();

  unsigned device_count() const;
  VendorLibrary library() const;
  VendorCall failed(std::string function, int code, std::string advice = "") const override;
  Where enter(Where context) const override;
  void leave(Where pushed) const noexcept override;

 private:
  Driver();

  Library library_;
};

}  // namespace pinning::cuda
