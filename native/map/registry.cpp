// SPDX-License-Identifier: Apache-2.0
// Which device has which map. Locks: `Registry::mutex` guards the list, is taken last, and is held during no call that
// may wait; over a fork too, so that the child's list is whole.
#include <pthread.h>

#include <map>
#include <mutex>
#include <pinning/shared_map.hpp>
#include <pinning/status_page.hpp>

#include "../vendors/devices.hpp"

namespace pinning {

namespace {

struct Registry {
  std::mutex mutex;
  std::map<VendorDevice*, pinning_map*> maps;
};

Registry& registry();

void before_fork() {
  registry().mutex.lock();
}

void after_fork_in_parent() {
  registry().mutex.unlock();
}

void after_fork_in_child() {
  for (auto const& [device, map] : registry().maps) map->begin_anew();
  registry().mutex.unlock();
}

/// Never destroyed: programs look things up until the end. Nor are its maps.
Registry& registry() {
  static Registry& only = []() -> Registry& {
    process_budget();  // first, so that in a child it begins anew before the maps that it counts
    auto* const made = new Registry;
    process_watcher();  // first, so that in a child it begins anew before the maps
    if (pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) != 0) throw std::bad_alloc();
    return *made;
  }();
  return only;
}

}  // namespace

pinning_map& shared_map(VendorDevice& device) {
  Registry& all = registry();
  std::lock_guard const guard(all.mutex);
  pinning_map*& map = all.maps[&device];
  if (map == nullptr) {
    // Like the map, never destroyed.
    map = new pinning_map(*new ListedLocker(device, device.name().c_str()), device.largest_lock(), &device);
  }
  return *map;
}

}  // namespace pinning
