// SPDX-License-Identifier: Apache-2.0
// Arguments of C functions: addresses as pointers, and pointers that must not be null.
#pragma once

#include <new>
#include <pinning/shared_map.hpp>

#include "failure.hpp"

namespace pinning {

inline Address word(void const* ptr) noexcept { return reinterpret_cast<Address>(ptr); }
inline void* pointer(Address address) noexcept { return reinterpret_cast<void*>(address); }

template <class Map>
Map& given(Map* map) {
  if (map == nullptr) throw InvalidArgument("the map is null; make one by pinning_map_create or pinning_map_open");
  if (map->map == nullptr) throw std::bad_alloc();  // there was no memory for it in this forked child
  return *map;
}

template <class Result>
Result& room(Result* result) {
  if (result == nullptr) throw InvalidArgument("a pointer for the result is null");
  return *result;
}

}  // namespace pinning
