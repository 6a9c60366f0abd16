// SPDX-License-Identifier: Apache-2.0
// Host memory: locked by mlock, allocated by mmap, copied by threads. Locks: `State::mutex` guards the list of
// allocations; the kernel is called without it.
#include <sys/mman.h>
#include <sys/utsname.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <map>
#include <new>

#include "../../base/system_call.hpp"
#include "../devices.hpp"
#include "host_queue.hpp"
#include "page_locks.hpp"

namespace pinning {

namespace {

char const* name_of(MemoryKind kind) {
  return kind == MemoryKind::host ? "HOST" : kind == MemoryKind::device ? "DEVICE" : "SHARED";
}

class HostDevice : public VendorDevice {
 public:
  std::string const& name() const noexcept override { return name_; }
  std::string description() override { return "host memory (mlock)"; }
  std::vector<MemoryKind> memory_kinds() override {
    return {MemoryKind::host, MemoryKind::device, MemoryKind::shared};
  }

  Address lock(Address ptr, std::uint64_t size, LockOptions) override {
    state_.locks.lock({ptr, size});
    return ptr;
  }
  void unlock(Address ptr) override { state_.locks.unlock(ptr); }
  void forget(Address ptr, Span gone) override { state_.locks.unlock(ptr, gone); }
  void drain_invalidations() override { state_.locks.drain_invalidations(); }
  std::optional<Pinned> is_pinned(Address ptr) override {
    auto const range = state_.locks.around(ptr);
    if (!range) return std::nullopt;
    return Pinned{range->start, range->size, range->start};
  }
  CoherenceSupport coherence() const noexcept override { return {.fine = true}; }

  Address allocate(std::uint64_t size, MemoryKind kind, bool) override {
    Allocations one{{0, {size, kind}}};
    auto entry = one.extract(one.begin());
    void* const made = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) {
      auto call = failed_call("mmap", errno, "asked for " + std::to_string(size) +
                                                  " bytes; allocate less, or see `ulimit -v` and /proc/sys/vm/overcommit_memory");
      call.no_memory = call.code == ENOMEM;
      throw VendorError(std::move(call));
    }
    Address const ptr = entry.key() = reinterpret_cast<Address>(made);
    if (kind == MemoryKind::host) {
      try {
        state_.locks.lock({ptr, size});
      } catch (...) {
        munmap(made, size);
        throw;
      }
    }
    std::lock_guard const guard(state_.mutex);
    state_.allocated.insert(std::move(entry));
    return ptr;
  }

  void free(Address ptr, MemoryKind kind) override {
    Allocations::node_type entry;
    {
      std::lock_guard const guard(state_.mutex);
      auto const allocation = state_.allocated.find(ptr);
      if (allocation != state_.allocated.end() && allocation->second.kind == kind) entry = state_.allocated.extract(allocation);
    }
    if (entry.empty()) {
      char text[96];
      std::snprintf(text, sizeof text, "0x%" PRIx64 " is not %s memory that host:0 has allocated", ptr, name_of(kind));
      throw InvalidRange(text);
    }
    std::uint64_t const size = entry.mapped().size;
    if (kind == MemoryKind::host) state_.locks.forget({ptr, size});
    // Last, because from here on the addresses may be reused.
    if (munmap(reinterpret_cast<void*>(ptr), size) == 0) return;
    int const code = errno;
    {
      std::lock_guard const guard(state_.mutex);
      state_.allocated.insert(std::move(entry));
    }
    if (kind == MemoryKind::host) state_.locks.lock({ptr, size});
    throw VendorError(failed_call("munmap", code, "the memory is still allocated; try again"));
  }

  std::optional<MemoryInfo> memory_info(Address ptr) override {
    {
      std::lock_guard const guard(state_.mutex);
      auto const next = state_.allocated.upper_bound(ptr);
      if (next != state_.allocated.begin()) {
        auto const& [base, found] = *std::prev(next);
        if (ptr - base < found.size) return MemoryInfo{found.kind, base, found.size, found.kind == MemoryKind::host ? -1 : 0};
      }
    }
    auto const range = state_.locks.around(ptr);
    if (!range) return std::nullopt;
    return MemoryInfo{MemoryKind::host, range->start, range->size, -1};
  }

  void copy(Address dst, Address src, std::uint64_t size) override {
    std::memmove(reinterpret_cast<void*>(dst), reinterpret_cast<void const*>(src), size);
  }
  void synchronize() override { state_.queues.synchronize(); }
  std::unique_ptr<VendorQueue> make_queue() override { return state_.queues.make(); }
  std::unique_ptr<VendorQueue> adopt_queue(std::uintptr_t handle) override { return state_.queues.adopt(handle); }

  void after_fork() override {
    // Not destroyed, because another thread of the parent may have been changing it. Construction needs no memory.
    static_assert(noexcept(State()));
    new (&state_) State;
  }

 private:
  struct Allocated {
    std::uint64_t size;
    MemoryKind kind;
  };
  using Allocations = std::map<Address, Allocated>;
  struct State {
    PageLocks locks;
    HostQueues queues;
    std::mutex mutex;
    Allocations allocated;
  };

  std::string const name_ = "host:0";
  State state_;
};

}  // namespace

Vendor const host_vendor{
    "host",
    [] { return 1u; },
    [](unsigned) -> std::unique_ptr<VendorDevice> { return std::make_unique<HostDevice>(); },
    []() -> VendorLibrary {
      utsname kernel{};
      uname(&kernel);
      return {kernel.sysname, kernel.release};
    },
};

}  // namespace pinning
