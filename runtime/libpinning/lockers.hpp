// SPDX-License-Identifier: Apache-2.0
// The native lockers: of vendors' drivers, which are loaded at first use, and of mlock.
#pragma once

#include <memory>
#include <pinning/locker.hpp>
#include <string>

namespace pinning {

/// A locker, and the bytes that one call of it can take.
struct Native {
  std::unique_ptr<Locker> locker;
  std::uint64_t largest = ~std::uint64_t{0};
};

/// "cuda" as "cuda:0", "cuda:1" as it is. Throws InvalidArgument for what is no name of a device.
std::string full_name(char const* device);

/// The locker of the device of this full name. Throws Unavailable, which says what is missing.
Native make_native(std::string const& name);

Native make_cuda(unsigned index);
Native make_hip(unsigned index);
Native make_hsa(unsigned index);
Native make_mlock(unsigned index);

}  // namespace pinning
