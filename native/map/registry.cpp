// SPDX-License-Identifier: Apache-2.0
// Which device has which map. No lock: the list only grows.
#include <memory>
#include <pinning/process.hpp>
#include <pinning/shared_map.hpp>
#include <pinning/status_page.hpp>

#include "../vendors/devices.hpp"

namespace pinning {

namespace {

/// The locker and the map of a device.
struct Shared {
  explicit Shared(VendorDevice& device)
      : locker(device, device.name().c_str()), map(locker, device.largest_lock(), &device) {}

  ListedLocker locker;
  pinning_map map;
};

/// Never destroyed: programs use the maps until they end.
GrowingList<std::unique_ptr<Shared>> all_maps;

void restart() {
  all_maps.each([](std::unique_ptr<Shared>& each) { each->map.restart(); });
}

}  // namespace

pinning_map& shared_map(VendorDevice& device) {
  auto const has_it = [&](std::unique_ptr<Shared> const& each) { return each->map.device == &device; };
  if (auto* const entry = all_maps.find(has_it)) return (*entry)->map;
  at_fork(Subsystem::maps, restart);
  return all_maps.add(std::make_unique<Shared>(device), has_it)->map;
}

}  // namespace pinning
