// SPDX-License-Identifier: Apache-2.0
// The devices that are native: each vendor's driver is loaded at first use.
#pragma once

#include <memory>
#include <pinning/siblings.hpp>
#include <pinning/vendor.hpp>
#include <string>

namespace pinning {

/// "cuda" as "cuda:0", "cuda:1" as it is. Throws InvalidArgument for what is no name of a device.
std::string full_name(char const* device);

/// What each vendor's folder has for the table of vendors. All throw Unavailable.
struct Vendor {
  char const* name;
  unsigned (*count)();
  std::unique_ptr<VendorDevice> (*make)(unsigned index);  // below `count`
  VendorLibrary (*library)();
};
extern Vendor const cuda_vendor, hip_vendor, host_vendor, hsa_vendor, ur_vendor;

}  // namespace pinning
