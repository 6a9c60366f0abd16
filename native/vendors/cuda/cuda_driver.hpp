// SPDX-License-Identifier: Apache-2.0
// The NVIDIA driver, as it is loaded at first use.
#pragma once

#include "../streams.hpp"
#include "cuda_abi.hpp"

namespace pinning::cuda {

enum { PINNING_CUDA_CONSTANTS(PINNING_CONSTANT) };

/// A place of this vendor is a context.
class Driver : public Functions, public StreamVendor {
 public:
  /// Loaded and started once; again after each failure. Throws Unavailable.
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
