// SPDX-License-Identifier: Apache-2.0
// What this process has mapped in a range of addresses.
#pragma once

#include <optional>
#include <pinning/errors.hpp>
#include <string>
#include <vector>

namespace pinning {

/// Whether the whole range is mapped. Uses msync, which writes nothing here: /proc/self/maps may be long.
bool all_mapped(Address ptr, std::uint64_t size);

/// One line of /proc/self/maps. `file` is the path of what is mapped, empty for anonymous memory.
struct Mapping {
  Address start, end;
  bool writable, shared;
  std::string file;
};

/// The mappings that hold bytes of [ptr, ptr + size), ascending.
std::vector<Mapping> mappings(Address ptr, std::uint64_t size);

/// The first address of the range that none of the `found` mappings holds; nullopt if they hold all of it.
std::optional<Address> gap(Address ptr, std::uint64_t size, std::vector<Mapping> const& found);

}  // namespace pinning
