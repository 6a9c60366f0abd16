// SPDX-License-Identifier: Apache-2.0
// The platforms with a device that the loader's adapters offer, of those that ONEAPI_DEVICE_SELECTOR selects.
#pragma once

#include <memory>

#include "ur_registrations.hpp"

namespace pinning::ur {

/// Devices that share a context, and with it what is locked.
struct Platform {
  Platform(std::string adapter, std::vector<void*> devices, unsigned first)
      : context(std::move(adapter), std::move(devices)), first(first) {}

  Context context;
  Registrations registrations{context};
  unsigned const first;  // the index of its first device among those of all platforms
};

class Platforms {
 public:
  /// Every adapter is asked once; again after each failure. One that does not work leaves the others. Throws
  /// Unavailable where there is no device, or in a fork.
  static Platforms& get();

  /// The platform of a device, by its index in the order of adapters and platforms.
  Platform& of_device(unsigned index);

  std::vector<std::string> problems;  // what went wrong with an adapter while others work

 private:
  Platforms();

  std::vector<std::unique_ptr<Platform>> platforms_;
  unsigned count_ = 0;
};

}  // namespace pinning::ur
