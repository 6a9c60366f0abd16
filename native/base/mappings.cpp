// SPDX-License-Identifier: Apache-2.0
#include "mappings.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <memory>

namespace pinning {

bool all_mapped(Address ptr, std::uint64_t size) {
  static auto const page = static_cast<Address>(sysconf(_SC_PAGESIZE));
  Address const start = ptr & -page, end = ((ptr + (size - 1)) & -page) + page;
  if (end <= start) return false;  // reaches the top of the address space, where nothing is mapped
  return msync(reinterpret_cast<void*>(start), end - start, MS_ASYNC) == 0 || errno != ENOMEM;
}

std::vector<Mapping> mappings(Address ptr, std::uint64_t size) {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> const maps(std::fopen("/proc/self/maps", "re"), std::fclose);
  if (!maps) throw Unavailable("/proc/self/maps cannot be read, so what is mapped is unknown: mount /proc");
  std::vector<Mapping> found;
  char* line = nullptr;
  std::size_t room = 0;
  while (getline(&line, &room, maps.get()) > 0) {
    std::uint64_t start, end, inode;
    char modes[5];
    int path = 0;
    if (std::sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %*s %*s %" SCNu64 " %n", &start, &end, modes, &inode, &path) < 4) {
      continue;
    }
    if (start > ptr + (size - 1)) break;
    if (end <= ptr) continue;
    std::string file(inode != 0 ? line + path : "");
    if (file.ends_with('\n')) file.pop_back();
    found.push_back({start, end, modes[1] == 'w', modes[3] == 's', std::move(file)});
  }
  std::free(line);
  return found;
}

std::optional<Address> gap(Address ptr, std::uint64_t size, std::vector<Mapping> const& found) {
  Address const last = ptr + (size - 1);
  for (auto const& mapping : found) {
    if (ptr < mapping.start) return ptr;
    if (last < mapping.end) return std::nullopt;
    ptr = mapping.end;
  }
  return ptr;
}

}  // namespace pinning
