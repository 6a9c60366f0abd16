// SPDX-License-Identifier: Apache-2.0
// The platforms with a device that the loader's adapters offer, of those that ONEAPI_DEVICE_SELECTOR selects.
#pragma once

#include <memory>
#include <pinning/vendor.hpp>

#include "ur_registrations.hpp"

namespace pinning::ur {

inline constexpr char level_zero[] = "Level Zero";  // the adapter

/// Devices that share a context, and with it what is locked.
struct Platform {
  Platform(void* handle, std::string adapter, std::vector<void*> devices, unsigned first)
      : handle(handle), context(std::move(adapter), std::move(devices)), first(first) {}

  void* const handle;
  Context context;
  Registrations registrations{context};
  unsigned const first;  // the index of its first device among those of all platforms
};

class Platforms {
 public:
  /// Every adapter is asked once; again after each failure. One that does not work leaves the others. Throws
  /// Unavailable where there is no device, or in a fork.
  static Platforms& get();

  /// Of devices.
  unsigned count() const noexcept { return count_; }
  /// The platform of a device, by its index in the order of adapters and platforms, which is below `count`.
  Platform& of_device(unsigned index) const;
  /// Its version is that of Unified Runtime, with the names of the adapters that speak it.
  VendorLibrary library() const;

  std::vector<std::string> problems;  // what went wrong with an adapter while others work

 private:
  Platforms();

  std::vector<std::unique_ptr<Platform>> platforms_;
  unsigned count_ = 0;
  std::string adapters_;  // their names
};

}  // namespace pinning::ur
