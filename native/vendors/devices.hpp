// SPDX-License-Identifier: Apache-2.0
// The native devices: each vendor's driver is loaded at first use.
#pragma once

#include <memory>
#include <pinning/vendor.hpp>
#include <string>

namespace pinning {

/// Completes a device name: "cuda" gives "cuda:0", "cuda:1" itself. Throws InvalidArgument if it is no device name.
std::string full_name(char const* device);

/// A vendor's entry in the table of vendors; each vendor's folder defines one. All functions throw Unavailable.
struct Vendor {
  char const* name;
  unsigned (*count)();
  std::unique_ptr<VendorDevice> (*make)(unsigned index);  // below `count`
  VendorLibrary (*library)();
};
extern Vendor const cuda_vendor, hip_vendor, host_vendor, hsa_vendor, ur_vendor;

}  // namespace pinning
