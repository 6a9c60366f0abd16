// SPDX-License-Identifier: Apache-2.0
// Calls of the C interface in which each `operator new` fails in turn: after an error neither the map nor the memory
// that the kernel has locked has changed.
#include <pinning/pinning.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>

namespace {

constexpr std::size_t page = 4096;
long left = -1;  // allocations that still succeed; -1: all; -2: none, because one has failed

[[noreturn]] void fail(char const* what, long allocation) {
  std::printf("VIOLATION: %s, allocation %ld\n", what, allocation);
  std::fflush(stdout);
  std::_Exit(1);
}

long locked_kib() {
  long kib = -1;
  char line[256];
  std::FILE* const status = std::fopen("/proc/self/status", "r");
  while (std::fgets(line, sizeof line, status) != nullptr && std::sscanf(line, "VmLck: %ld", &kib) != 1) {
  }
  std::fclose(status);
  return kib;
}

struct State {
  long locked;
  std::size_t count;
  pinning_region regions[4];
  bool operator==(State const& other) const { return std::memcmp(this, &other, sizeof *this) == 0; }
};
State state_of(pinning_map const* map) {
  State state{};
  state.locked = locked_kib();
  if (pinning_regions(map, state.regions, 4, &state.count) != PINNING_OK) fail("the regions", -1);
  return state;
}

/// Call `act` with each of its allocations failing, until none fails; then it must succeed. `undo` follows a success.
void each_fails(pinning_map* map, char const* what, std::function<pinning_status()> const& act,
                std::function<pinning_status()> const& undo) {
  State const before = state_of(map);
  long allocation = 0;
  for (;; ++allocation) {
    left = allocation;
    pinning_status const status = act();
    bool const failed = left == -2;
    left = -1;
    if (status == PINNING_OK) {
      if (undo() != PINNING_OK) fail(what, allocation);
    } else if (!failed) {
      fail(what, allocation);
    }
    if (!(state_of(map) == before)) fail(what, allocation);
    if (!failed) break;
  }
  std::printf("%s: %ld allocations; ", what, allocation);
}

}  // namespace

[[gnu::noinline]] void* operator new(std::size_t size) {
  if (left == 0) left = -2;
  void* const memory = left == -2 ? nullptr : std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  if (left > 0) --left;
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

int main() {
  pinning_map* map;
  if (pinning_map_open(&map, "host:0") != PINNING_OK) fail("the host", -1);
  auto* const at = static_cast<char*>(mmap(nullptr, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  auto const unlock = [&] { return pinning_unlock(map, at); };
  each_fails(map, "lock", [&] { return pinning_lock(map, at, 2 * page, nullptr); }, unlock);
  each_fails(map, "lock_mapped", [&] { return pinning_lock_mapped(map, at, 2 * page, PINNING_MANDATORY, nullptr); },
             [&] { return pinning_unlock_unmapped(map, at); });
  if (pinning_lock(map, at, 2 * page, nullptr) != PINNING_OK) fail("a lock", -1);
  each_fails(map, "lock inside", [&] { return pinning_lock(map, at + 1, 10, nullptr); }, unlock);
  each_fails(map, "lock beside", [&] { return pinning_lock(map, at + 2 * page, page, nullptr); },
             [&] { return pinning_unlock(map, at + 2 * page); });
  left = 0;  // unlocking needs no memory
  pinning_status const status = unlock();
  left = -1;
  if (status != PINNING_OK || locked_kib() != 0) fail("unlock", 0);
  std::puts("all right");
}
