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
  Shared(VendorDevice& device, Shared& first) : locker(device, device.name().c_str()), map(locker, device, first.map) {}

  ListedLocker locker;
  pinning_map map;
};

/// The first device of each registration domain, and the others, which share its PinnedMap. Never destroyed: programs
/// use the maps until they end.
GrowingList<std::unique_ptr<Shared>> domains, others;

void restart() {
  for (auto* list : {&domains, &others}) list->each([](std::unique_ptr<Shared>& each) { each->map.restart(); });
}

}  // namespace

pinning_map& shared_map(VendorDevice& device) {
  auto const has_it = [&](std::unique_ptr<Shared> const& each) { return each->map.device == &device; };
  for (auto const* list : {&domains, &others}) {
    if (auto* const entry = list->find(has_it)) return (*entry)->map;
  }
  at_fork(Subsystem::maps, restart);
  auto const of_domain = [name = device.registration_domain()](std::unique_ptr<Shared> const& each) {
    return each->map.device->registration_domain() == name;
  };
  auto const* const known = domains.find(of_domain);  // first, because a map is much to make
  Shared& first = known != nullptr ? **known : *domains.add(std::make_unique<Shared>(device), of_domain);
  if (first.map.device == &device) return first.map;
  return others.add(std::make_unique<Shared>(device, first), has_it)->map;
}

}  // namespace pinning
