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

std::unique_ptr<VendorDevice> make_cuda(unsigned index);
std::unique_ptr<VendorDevice> make_hip(unsigned index);
std::unique_ptr<VendorDevice> make_host(unsigned index);
std::unique_ptr<VendorDevice> make_hsa(unsigned index);
std::unique_ptr<VendorDevice> make_ur(unsigned index);

}  // namespace pinning
