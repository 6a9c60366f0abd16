// SPDX-License-Identifier: Apache-2.0
// A vendor takes 0.3 ms per MiB to allocate pinned memory. Our own pages are cleared by the copy threads in parallel,
// and huge pages are locked in almost no time (docs/design/staging.md has the figures).
#include "ring_memory.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "copy_threads.hpp"

namespace pinning {

namespace {

/// Whether pages that other threads populate still come from this thread's NUMA node, as the vendor's own would.
bool stays_near(void* memory, std::uint64_t size) {
  if (access("/sys/devices/system/node/node1", F_OK) != 0) return true;
  int policy = 0;
  constexpr int by_default = 0, preferred = 1;  // MPOL_DEFAULT, MPOL_PREFERRED
  // A policy of the program holds for its other threads too.
  if (syscall(SYS_get_mempolicy, &policy, nullptr, 0, nullptr, 0) == 0 && policy != by_default) return true;
  constexpr unsigned most_nodes = 1024;
  unsigned long nodes[most_nodes / 64] = {};
  unsigned node = 0;
  if (syscall(SYS_getcpu, nullptr, &node, nullptr) != 0 || node >= most_nodes) return false;
  nodes[node / 64] = 1ul << node % 64;
  return syscall(SYS_mbind, memory, size, preferred, nodes, most_nodes, 0) == 0;  // many containers forbid it
}

/// Map memory for a ring; null if there is none.
char* map_ring(CopyThreads& threads, std::uint64_t blocks) {
  std::uint64_t const size = Ring::front + blocks, spare = blocks > 0 ? huge_page : 0;
  void* const found = mmap(nullptr, size + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (found == MAP_FAILED) return nullptr;
  char* memory = static_cast<char*>(found);
  if (spare > 0) {  // align the blocks to a huge page
    std::uint64_t const before = spare - (reinterpret_cast<Address>(memory) + Ring::front - 1) % huge_page - 1;
    if (before > 0) munmap(memory, before);
    memory += before;
    if (spare > before) munmap(memory + size, spare - before);
  }
  // After a fork this process would write to copies of the pages, which the device does not see.
  madvise(memory, size, MADV_DONTFORK);
  if (spare > 0) madvise(memory, size, MADV_HUGEPAGE);
  if (spare > 0 && stays_near(memory, size)) threads.bring_in(memory + Ring::front, blocks, huge_page);
  return memory;
}

}  // namespace

RingMemory RingMemory::make(VendorDevice& device, CopyThreads& threads, std::uint64_t blocks) {
  std::uint64_t const size = Ring::front + blocks;
  if (device.locks_sooner()) {
    if (char* const memory = map_ring(threads, blocks)) {
      auto const ptr = reinterpret_cast<Address>(memory);
      try {
        return {ptr, device.lock(ptr, size, {.access = Access::writable}) - ptr, size};
      } catch (std::exception const&) {  // such as under confidential computing: the vendor's own may work
        munmap(memory, size);
      }
    }
  }
  return {device.allocate(size, MemoryKind::host)};
}

void RingMemory::free(VendorDevice& device) {
  if (mapped == 0) {
    device.free(ptr, MemoryKind::host);
  } else {
    if (device.memory_info(ptr)) device.unlock(ptr);  // otherwise it is gone with its context
  }
  forget();
}

void RingMemory::forget() noexcept {
  if (mapped > 0) munmap(reinterpret_cast<void*>(ptr), mapped);
  *this = {};
}

}  // namespace pinning
