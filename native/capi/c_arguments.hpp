// SPDX-License-Identifier: Apache-2.0
// Arguments of C functions: addresses as pointers, and pointers that must not be null.
#pragma once

#include <algorithm>
#include <pinning/shared_map.hpp>
#include <string>

#include "failure.hpp"

namespace pinning {

inline Address word(void const* ptr) noexcept { return reinterpret_cast<Address>(ptr); }

template <class Map>
Map& given(Map* map) {
  if (map == nullptr) throw InvalidArgument("the map is null; make one by pinning_map_create or pinning_map_open");
  map->made();
  return *map;
}

/// The size of a structure that may grow, `name`, if it is one of this release or of a later one.
template <class Struct>
std::size_t struct_size(Struct const& given, char const* name) {
  if (given.struct_size < sizeof(Struct) || given.struct_size > 4096) {
    throw InvalidArgument("struct_size is " + std::to_string(given.struct_size) + "; set it to sizeof(" + name + "), which is " +
                          std::to_string(sizeof(Struct)));
  }
  return given.struct_size;
}

/// Check a structure from the program: fields that are not known here must be empty.
template <class Struct>
void check_fields(Struct const& given, char const* name) {
  auto const* const bytes = reinterpret_cast<unsigned char const*>(&given);
  if (std::any_of(bytes + sizeof(Struct), bytes + struct_size(given, name), [](unsigned char each) { return each != 0; })) {
    throw InvalidArgument(std::string(name) + " has fields that release " PINNING_VERSION " does not know; leave them 0");
  }
}

template <class Result>
Result& room(Result* result) {
  if (result == nullptr) throw InvalidArgument("a pointer for the result is null");
  return *result;
}

}  // namespace pinning
