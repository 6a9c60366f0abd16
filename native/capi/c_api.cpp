// SPDX-License-Identifier: Apache-2.0
// <pinning/pinning.h>: checks arguments and turns exceptions into statuses; the map does everything else.
#include "c_arguments.hpp"
#include "c_locker.hpp"
#include "c_registrar.hpp"
#include "../base/alone.hpp"
#include "../vendors/devices.hpp"

namespace {

using pinning::Address;
using pinning::given;
using pinning::guarded;
using pinning::InvalidArgument;
using pinning::pointer;
using pinning::room;
using pinning::word;

void set(void** result, Address address) noexcept {
  if (result != nullptr) *result = pointer(address);
}

pinning_region in_c(pinning::Region const& region) noexcept {
  return {pointer(region.start), region.size,       pointer(region.device_ptr),
          region.piece,          region.references, region.external};
}

pinning::VendorDevice& gpu(int device) { return pinning::vendor_device("cuda:" + std::to_string(device)); }

}  // namespace

char const* pinning_version() noexcept { return PINNING_VERSION; }

pinning_status pinning_map_create(pinning_map** map, pinning_locker const* locker) noexcept {
  return guarded([&] {
    room(map);
    pinning::check_alone();
    if (locker == nullptr) throw InvalidArgument("the locker is null; give one with its three functions");
    pinning::check_fields(*locker, "pinning_locker");
    if (locker->lock == nullptr || locker->unlock == nullptr || locker->is_pinned == nullptr) {
      throw InvalidArgument("a locker needs its three functions, and at least one of them is null");
    }
    auto calls = std::make_unique<pinning::CLocker>(*locker);
    *map = new pinning_map(*calls, ~std::uint64_t{0}, nullptr);
    calls.release();  // owned by the map, until pinning_map_destroy
  });
}

pinning_status pinning_map_destroy(pinning_map* map) noexcept {
  return guarded([&] {
    std::unique_ptr<pinning::CLocker> calls(dynamic_cast<pinning::CLocker*>(&given(map).locker));
    if (calls == nullptr) {
      throw InvalidArgument("this map is from pinning_map_open and exists until the process ends; do not destroy it");
    }
    try {
      map->map->clear();
    } catch (...) {
      calls.release();
      throw;
    }
    delete map;
  });
}

pinning_status pinning_map_open(pinning_map** map, char const* device) noexcept {
  return guarded([&] {
    room(map);
    *map = &pinning::shared_map(pinning::vendor_device(pinning::full_name(device)));
  });
}

pinning_status pinning_lock(pinning_map* map, void* ptr, size_t size, void** device_ptr) noexcept {
  return guarded([&] { set(device_ptr, given(map).map->lock(word(ptr), size, map->options(), map->piece(size)).device_ptr); });
}

pinning_status pinning_unlock(pinning_map* map, void const* ptr) noexcept {
  return guarded([&] { given(map).map->unlock(word(ptr)); });
}

pinning_status pinning_register(pinning_map* map, void* ptr, size_t size, void* device_ptr) noexcept {
  return guarded([&] { given(map).map->register_pinned(word(ptr), size, word(device_ptr)); });
}

pinning_status pinning_unregister(pinning_map* map, void const* ptr) noexcept {
  return guarded([&] { given(map).map->unregister(word(ptr)); });
}

pinning_status pinning_refresh(pinning_map* map) noexcept {
  return guarded([&] { given(map).map->refresh(); });
}

pinning_status pinning_lock_mapped(pinning_map* map, void* ptr, size_t size, pinning_policy policy,
                                   void** device_ptr) noexcept {
  return guarded([&] {
    using pinning::LockMapped;
    given(map);
    if (policy != PINNING_OFF && policy != PINNING_ON && policy != PINNING_MANDATORY) {
      throw InvalidArgument("there is no policy " + std::to_string(policy) +
                            "; give PINNING_OFF, PINNING_ON or PINNING_MANDATORY");
    }
    LockMapped const how = policy == PINNING_OFF  ? LockMapped::off
                           : policy == PINNING_ON ? LockMapped::on
                                                  : LockMapped::mandatory;
    set(device_ptr, map->mapped->lock_mapped(word(ptr), size, how, map->options(), map->piece(size)).value_or(0));
  });
}

pinning_status pinning_unlock_unmapped(pinning_map* map, void const* ptr) noexcept {
  return guarded([&] { given(map).mapped->unlock_unmapped(word(ptr)); });
}

pinning_status pinning_add_registrar(pinning_map* map, pinning_registrar const* registrar) noexcept {
  return guarded([&] {
    if (registrar == nullptr) throw InvalidArgument("the registrar is null; give one with its two functions");
    pinning::check_fields(*registrar, "pinning_registrar");
    if (registrar->add == nullptr || registrar->remove == nullptr) {
      throw InvalidArgument("a registrar needs its two functions, and at least one of them is null");
    }
    given(map).map->add_registrar(std::make_unique<pinning::CRegistrar>(*registrar));
  });
}

pinning_status pinning_remove_registrar(pinning_map* map, void const* self) noexcept {
  return guarded([&] {
    if (!given(map).map->remove_registrar(self)) throw InvalidArgument("no registrar of this map has that `self`");
  });
}

pinning_status pinning_get_budget(pinning_budget* budget) noexcept {
  return guarded([&] {
    auto const now = pinning::process_budget().figures();
    auto const size = pinning::struct_size(room(budget), "pinning_budget");  // fields that are not known here stay
    *budget = {size, now.limit, now.locked, now.idle, now.external, now.idle_limit};
  });
}

pinning_status pinning_set_budget(uint64_t limit) noexcept {
  return guarded([&] {
    pinning::process_budget().set(limit, std::nullopt);
  });
}

pinning_status pinning_give_back_idle(uint64_t bytes, uint64_t* given) noexcept {
  return guarded([&] {
    uint64_t const bytes_given = pinning::process_budget().trim(bytes);
    if (given != nullptr) *given = bytes_given;
  });
}

pinning_status pinning_find(pinning_map const* map, void const* ptr, size_t size, pinning_region* region) noexcept {
  if (map == nullptr) return guarded([&] { given(map); });
  if (map->map == nullptr) return PINNING_NOT_LOCKED;
  auto const held = map->map->find(word(ptr), size);
  if (!held) return PINNING_NOT_LOCKED;
  if (region != nullptr) *region = in_c(*held);
  return PINNING_OK;
}

pinning_status pinning_regions(pinning_map const* map, pinning_region* regions, size_t room_for,
                               size_t* count) noexcept {
  return guarded([&] {
    given(map);
    room(count);
    if (room_for != 0) room(regions);
    auto const all = map->map->regions();
    for (std::size_t i = 0; i < std::min(room_for, all.size()); ++i) regions[i] = in_c(all[i]);
    *count = all.size();
  });
}

void* pinning_sleepable_alloc(ptrdiff_t size, int device, void*) noexcept {
  Address ptr = 0;
  guarded([&] { ptr = gpu(device).allocate_sleepable(static_cast<std::uint64_t>(size)); });
  return pointer(ptr);
}

void pinning_sleepable_free(void* ptr, size_t, int device, void*) noexcept {
  guarded([&] { gpu(device).free(word(ptr), pinning::MemoryKind::device); });
}

pinning_status pinning_sleep(void* ptr, int device) noexcept {
  return guarded([&] { gpu(device).set_awake(word(ptr), false); });
}

pinning_status pinning_wake(void* ptr, int device) noexcept {
  return guarded([&] { gpu(device).set_awake(word(ptr), true); });
}
