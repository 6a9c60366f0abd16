// SPDX-License-Identifier: Apache-2.0
// The context of a platform: memory is locked and allocated in it, and all devices of the platform share it.
#pragma once

#include <atomic>

#include "ur_loader.hpp"

namespace pinning::ur {

class Context {
 public:
  /// `adapter` is the name of the platform's adapter, such as "Level Zero".
  Context(std::string adapter, std::vector<void*> devices)
      : adapter(std::move(adapter)), devices(std::move(devices)) {}

  /// Made at first use and never released. If two threads make one at once, one of the two is released.
  void* handle(Loader const& loader) {
    if (void* const known = handle_.load()) return known;
    void *made = nullptr, *none = nullptr;
    auto const count = static_cast<std::uint32_t>(devices.size());
    loader.check(loader.urContextCreate, count, devices.data(), nullptr, &made);
    if (handle_.compare_exchange_strong(none, made)) return made;
    loader.urContextRelease(made);
    return none;
  }

  std::string const adapter;
  std::vector<void*> devices;

 private:
  std::atomic<void*> handle_ = nullptr;
};

}  // namespace pinning::ur
