// SPDX-License-Identifier: Apache-2.0
// The functions by which a program gives memory back, or gets other pages at the same addresses. Where this library is
// loaded before libc, by LD_PRELOAD or link order, the program calls these. What is locked there is unlocked first: a
// device goes on using the old pages of a lock whose memory has gone, and nobody notices.
//
// libc's own calls, such as those by which `free` unmaps, do not come here. So `free` itself does.
#include <dlfcn.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <memory>

#include "tool.hpp"

namespace {

using pinning::omp::Address;
using pinning::omp::Inside;
using pinning::omp::Range;
using pinning::omp::range_of;
using pinning::omp::Tool;

/// The functions that the program would call without this library. Looked up when this library is loaded, or by whoever
/// needs them sooner: the look-up itself frees nothing, unless it fails.
struct Next {
  decltype(&::free) free = nullptr;
  decltype(&::realloc) realloc = nullptr;
  decltype(&::munmap) munmap = nullptr;
  void* (*mmap)(void*, size_t, int, int, int, off_t) = nullptr;
  void* (*mremap)(void*, size_t, size_t, int, ...) = nullptr;
  decltype(&::madvise) madvise = nullptr;
  decltype(&::shmdt) shmdt = nullptr;
  decltype(&::brk) brk = nullptr;
  decltype(&::sbrk) sbrk = nullptr;
};
Next next;

template <class Function>
void find(char const* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

[[gnu::constructor]] void look_up() {
  find("free", next.free);
  find("realloc", next.realloc);
  find("munmap", next.munmap);
  find("mmap", next.mmap);
  find("mremap", next.mremap);
  find("madvise", next.madvise);
  find("shmdt", next.shmdt);
  find("brk", next.brk);
  find("sbrk", next.sbrk);
}

Next const& libc() {
  if (next.sbrk == nullptr) [[unlikely]] look_up();
  return next;
}

void goes(Tool& tool, Range const& range) noexcept {
  if (Inside::now()) return;
  int const error = errno;
  Inside const inside;
  try {
    tool.freed(range);
  } catch (...) {  // out of memory: what is locked stays so, as without this library
  }
  errno = error;
}

void goes(Range const& range) noexcept {
  Tool* const tool = Tool::running();
  if (tool != nullptr && tool->may_meet(range)) goes(*tool, range);
}

void block_goes(void* ptr) noexcept {
  Tool* const tool = Tool::running();
  if (tool == nullptr || ptr == nullptr) return;
  Range const block = range_of(ptr, malloc_usable_size(ptr));
  if (tool->may_meet(block)) [[unlikely]] goes(*tool, block);
}

/// The mapping that starts at an address, as shmdt takes it.
Range mapping_at(Address start) {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> const maps(std::fopen("/proc/self/maps", "re"), std::fclose);
  char line[512];
  while (maps && std::fgets(line, sizeof line, maps.get()) != nullptr) {
    Range found;
    int const read = std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &found.start, &found.end);
    if (read == 2 && found.start == start) return found;
  }
  return {start, start + 1};
}

}  // namespace

bool pinning::omp::frees_are_seen() noexcept {
  Dl_info self, found;
  if (dladdr(reinterpret_cast<void*>(&look_up), &self) == 0) return false;
  for (char const* const name : {"free", "munmap"}) {
    void* const theirs = dlsym(RTLD_DEFAULT, name);
    if (theirs == nullptr || dladdr(theirs, &found) == 0 || found.dli_fbase != self.dli_fbase) return false;
  }
  return true;
}

#pragma GCC visibility push(default)
extern "C" {

void free(void* ptr) noexcept {
  block_goes(ptr);
  libc().free(ptr);
}

void* realloc(void* ptr, size_t size) noexcept {
  block_goes(ptr);
  return libc().realloc(ptr, size);
}

int munmap(void* ptr, size_t size) noexcept {
  goes(range_of(ptr, size));
  return libc().munmap(ptr, size);
}

void* mmap(void* ptr, size_t size, int protection, int flags, int file, off_t offset) noexcept {
  if ((flags & MAP_FIXED) != 0) goes(range_of(ptr, size));
  return libc().mmap(ptr, size, protection, flags, file, offset);
}

void* mmap64(void* ptr, size_t size, int protection, int flags, int file, off64_t offset) noexcept {
  return mmap(ptr, size, protection, flags, file, offset);
}

void* mremap(void* ptr, size_t size, size_t new_size, int flags, ...) noexcept {
  goes(range_of(ptr, size));
  if ((flags & MREMAP_FIXED) == 0) return libc().mremap(ptr, size, new_size, flags);
  va_list arguments;
  va_start(arguments, flags);
  void* const target = va_arg(arguments, void*);
  va_end(arguments);
  goes(range_of(target, new_size));
  return libc().mremap(ptr, size, new_size, flags, target);
}

int madvise(void* ptr, size_t size, int advice) noexcept {
  if (advice == MADV_DONTNEED || advice == MADV_FREE || advice == MADV_REMOVE) goes(range_of(ptr, size));
  return libc().madvise(ptr, size, advice);
}

int shmdt(void const* ptr) noexcept {
  if (Tool::running() != nullptr && !Inside::now()) goes(mapping_at(reinterpret_cast<Address>(ptr)));
  return libc().shmdt(ptr);
}

int brk(void* end) noexcept {
  auto const now = reinterpret_cast<Address>(libc().sbrk(0));
  goes({reinterpret_cast<Address>(end), now});
  return libc().brk(end);
}

void* sbrk(intptr_t change) noexcept {
  auto const now = reinterpret_cast<Address>(libc().sbrk(0));
  if (change < 0) goes({now + static_cast<Address>(change), now});
  return libc().sbrk(change);
}
}
#pragma GCC visibility pop
