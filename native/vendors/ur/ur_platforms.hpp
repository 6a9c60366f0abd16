// SPDX-License-Identifier: Apache-2.0
// The platforms of the loader's adapters that have a device selected by ONEAPI_DEVICE_SELECTOR.
#pragma once

#include <memory>
#include <pinning/vendor.hpp>

#include "ur_registrations.hpp"

namespace pinning::ur {

inline constexpr char level_zero[] = "Level Zero";  // the adapter

/// Devices that share a context, and so its registrations.
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
  /// Queries every adapter once; tries again after a failure. A failed adapter does not affect the others. Throws
  /// Unavailable if there is no device, or in a fork.
  static Platforms& get();

  /// The number of devices.
  unsigned count() const noexcept { return count_; }
  /// The platform of a device; `index`, below `count`, follows the order of adapters and platforms.
  Platform& of_device(unsigned index) const;
  /// The version is Unified Runtime's API version, followed by the names of the adapters.
  VendorLibrary library() const;

  std::vector<std::string> problems;  // errors of adapters, while others work

 private:
  Platforms();

  std::vector<std::unique_ptr<Platform>> platforms_;
  unsigned count_ = 0;
  std::string adapters_;  // their names
};

}  // namespace pinning::ur
