// SPDX-License-Identifier: Apache-2.0
// Which mapped file does a pointer belong to? Asked by several threads, while one of them maps and unmaps memory.
#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <pagetable/page_table.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

class Mappings {
 public:
  Mappings() {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      std::uint64_t start, end;
      char dash;
      std::string rights, offset, device, inode, name;
      std::istringstream words(line);
      words >> std::hex >> start >> dash >> end >> rights >> offset >> device >> inode >> name;
      pagetable::Region const region = table.insert(start, end - start);
      names_.resize(region.id + 1);  // ids are small: an array holds what we know of a region
      names_[region.id] = name.empty() ? "memory of no file" : name;
    }
  }

  std::string owner_of(void const* pointer) const {
    auto const region = table.find(reinterpret_cast<std::uint64_t>(pointer));
    return region ? names_[region->id] : "nobody";
  }

  pagetable::PageTable<> table;

 private:
  std::vector<std::string> names_;
};

int main() {
  static int global = 0;
  int local = 0;
  Mappings mappings;
  std::cout << "a global:   " << mappings.owner_of(&global) << "\n"
            << "a local:    " << mappings.owner_of(&local) << "\n"
            << "std::fopen: " << mappings.owner_of(reinterpret_cast<void*>(&std::fopen)) << "\n"
            << "null:       " << mappings.owner_of(nullptr) << "\n";

  // Readers take no lock. Each answer is that of one instant, before or after a change.
  constexpr std::size_t size = 1 << 20;
  std::atomic<bool> done = false;
  std::atomic<long> asked = 0, lost = 0;
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      do {
        lost += !mappings.table.contains(reinterpret_cast<std::uint64_t>(&global));
        ++asked;
      } while (!done);
    });
  }
  for (int i = 0; i < 10'000; ++i) {
    void* const block = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    auto const start = reinterpret_cast<std::uint64_t>(block);
    for (auto const& stale : mappings.table.overlapping(start, size)) mappings.table.remove(stale.start);
    mappings.table.insert(start, size);
    lost += !mappings.table.find_range(start, size);
    mappings.table.remove(start);
    munmap(block, size);
  }
  done = true;
  for (auto& reader : readers) reader.join();
  std::cout << "asked " << asked << " times meanwhile, " << lost << " wrong answers\n";
  return lost != 0;
}
