// SPDX-License-Identifier: Apache-2.0
// Which map has which name. Locks: `Registry::mutex` guards the list, is taken last, and is held during no call that may
// wait; over a fork too, so that the child's list is whole.
#include <pthread.h>

#include <map>
#include <mutex>
#include <pinning/shared_map.hpp>

namespace pinning {

namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, pinning_map*> maps;
};

void begin_anew();

/// Never destroyed: programs look things up until the end. Nor are its maps.
Registry& registry() {
  static Registry& only = []() -> Registry& {
    auto* const made = new Registry;
    if (pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); }, begin_anew) != 0) {
      throw std::bad_alloc();
    }
    return *made;
  }();
  return only;
}

void begin_anew() {
  for (auto const& [name, each] : registry().maps) {
    each->locker->after_fork();
    each->begin();
  }
  registry().mutex.unlock();
}

}  // namespace

pinning_map* find_shared(std::string const& name) {
  Registry& all = registry();
  std::lock_guard const guard(all.mutex);
  auto const found = all.maps.find(name);
  return found == all.maps.end() ? nullptr : found->second;
}

pinning_map* share(std::string const& name, std::unique_ptr<Locker>& locker, std::uint64_t largest) {
  Registry& all = registry();
  std::lock_guard const guard(all.mutex);
  auto const [place, is_new] = all.maps.try_emplace(name);
  if (!is_new) return place->second;
  try {
    place->second = new pinning_map(std::move(locker), largest);
  } catch (...) {
    all.maps.erase(place);
    throw;
  }
  return place->second;
}

}  // namespace pinning
