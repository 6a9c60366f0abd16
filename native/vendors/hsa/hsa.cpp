// SPDX-License-Identifier: Apache-2.0
// AMD GPUs, through the HSA runtime.
#include <algorithm>
#include <cstring>

#include "../devices.hpp"
#include "hsa_copies.hpp"
#include "hsa_queue.hpp"

namespace pinning {

namespace {

using namespace hsa;

[[noreturn]] void already_pinned(Address ptr, std::uint64_t size, int type) {
  throw VendorAlreadyPinned(
      {"hsa_amd_pointer_info", type,
       type == HSA_EXT_POINTER_TYPE_HSA ? "HSA_EXT_POINTER_TYPE_HSA" : "HSA_EXT_POINTER_TYPE_LOCKED",
       describe(ptr, size) + " is pinned already, in whole or in part, and HSA would lock it twice"});
}

/// A lock is for all GPUs: its device pointer is the same on each, whichever device has locked the memory.
class HsaDevice : public VendorDevice {
 public:
  explicit HsaDevice(unsigned index) : name_("hsa:" + std::to_string(index)), index_(static_cast<int>(index)) {
    Runtime const& runtime = Runtime::get();
    agent_ = runtime.gpus[index];
    auto const pools = runtime.pools(agent_, HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_COARSE_GRAINED);
    if (pools.empty()) throw Unavailable(name_ + " has no coarse-grained memory of its own: see `rocminfo`");
    own_pool_ = pools.front();
    for (Handle const other : runtime.gpus) {
      if (other.handle == agent_.handle) continue;
      std::uint32_t access = 0;
      int const asked = HSA_AMD_AGENT_MEMORY_POOL_INFO_ACCESS;
      runtime.check(runtime.hsa_amd_agent_memory_pool_get_info, other, own_pool_, asked, &access);
      if (access != HSA_AMD_MEMORY_POOL_ACCESS_NEVER_ALLOWED) peers_.push_back(other);
    }
  }

  std::string const& name() const noexcept override { return name_; }
  std::uintptr_t native_handle() override {
    Runtime::get();  // throws in a fork
    return agent_.handle;
  }
  /// The pool of the GPU's own memory.
  std::uintptr_t native_context() override { return own_pool_.handle; }

  /// The product and its instruction set, such as "AMD Instinct MI300X (gfx942)".
  std::string description() override {
    auto const product = text(HSA_AMD_AGENT_INFO_PRODUCT_NAME), isa = text(HSA_AGENT_INFO_NAME);
    return product.empty() ? isa : product + " (" + isa + ")";
  }

  /// If the other GPU can reach this one's pool, `allocate` makes all device memory accessible to it; if not, copies go
  /// through the host.
  MemoryConnection connection(VendorDevice& other) override {
    auto* const user = dynamic_cast<HsaDevice*>(&other);
    if (user == nullptr || user == this) return VendorDevice::connection(other);
    Runtime::get();
    bool const reaches = std::ranges::find(peers_, user->agent_.handle, &Handle::handle) != peers_.end();
    return reaches ? MemoryConnection::unified : MemoryConnection::none;
  }

  std::vector<std::string> problems() override { return Runtime::get().problems(); }

  // ---- locking ----

  /// Fine-grained locks use hsa_amd_memory_lock_to_pool with the host's fine-grained pool; coarse-grained ones use
  /// hsa_amd_memory_lock, whose locks always are. The runtime has no read-only locks.
  Address lock(Address ptr, std::uint64_t size, LockOptions options) override {
    Runtime const& runtime = Runtime::get();
    for (Address const end : {ptr, ptr + (size - 1)}) {
      if (auto const info = pointer_info(runtime, end); is_pinned_host(runtime, info)) {
        already_pinned(ptr, size, info.type);
      }
    }
    if (!Locks::get().enter(ptr, size)) already_pinned(ptr, size, HSA_EXT_POINTER_TYPE_LOCKED);
    try {
      Address const device_ptr = vendor_lock(runtime, ptr, size, options.coherence == Coherence::coarse);
      Locks::get().locked(ptr, device_ptr);
      return device_ptr;
    } catch (...) {
      Locks::get().leave(ptr);
      throw;
    }
  }

  /// Checks that the range is locked, because the runtime reports no error for one that is not.
  void unlock(Address ptr) override {
    Runtime const& runtime = Runtime::get();
    auto const device_ptr = Locks::get().begin_unlock(ptr);
    if (!device_ptr) throw NotLocked("no range that starts at " + describe(ptr) + " is locked on " + name_);
    if (int const code = runtime.hsa_amd_memory_unlock(reinterpret_cast<void*>(ptr)); code != 0) {
      Locks::get().locked(ptr, *device_ptr);
      runtime.check_code(runtime.hsa_amd_memory_unlock, code);
    }
    Locks::get().leave(ptr);
  }

  /// If the kernel driver supports shared virtual memory (Vega GPUs and later), the runtime knows its own allocations,
  /// but not what other code has locked.
  std::optional<Pinned> is_pinned(Address ptr) override {
    auto const range = range_around(Runtime::get(), ptr);
    if (!range || range->gpu || !range->holds_host(ptr)) return std::nullopt;  // `ptr` may be a GPU address
    return Pinned{range->host, range->size, range->device};
  }

  CoherenceSupport coherence() const noexcept override { return {.fine = true, .coarse = true}; }
  std::string registration_domain() const override { return "hsa"; }

  // ---- memory ----

  /// Aligned to a page, from the GPU's coarse-grained pool or the host's fine-grained one. Host memory is accessible to
  /// all GPUs, device memory also to the GPUs that can reach it.
  Address allocate(std::uint64_t size, MemoryKind kind, bool write_combined) override {
    Runtime const& runtime = Runtime::get();
    if (kind == MemoryKind::shared) {
      // HSA has managed memory, but the runtime does not know it by its pointer.
      throw Unsupported(name_ + " has no memory of kind SHARED: use a device of the plugin hip, or HOST memory, which "
                                "GPUs reach over the bus");
    }
    if (write_combined) throw Unsupported(name_ + " has no write-combined memory: use a device of the plugin hip");
    bool const on_host = kind == MemoryKind::host;
    void* made = nullptr;
    runtime.check(runtime.hsa_amd_memory_pool_allocate, on_host ? runtime.coherent_pool : own_pool_, size, 0, &made);
    auto const ptr = reinterpret_cast<Address>(made);
    auto const& users = on_host ? runtime.gpus : peers_;
    if (users.empty()) return ptr;
    try {
      auto const count = static_cast<std::uint32_t>(users.size());
      int const code = runtime.hsa_amd_agents_allow_access(count, users.data(), nullptr, made);
      runtime.check_code(runtime.hsa_amd_agents_allow_access, code);
      if (!on_host) PeerMemory::get().add(ptr);
    } catch (...) {
      runtime.hsa_amd_memory_pool_free(made);
      throw;
    }
    return ptr;
  }

  /// The runtime does not wait for work that uses the memory.
  void free(Address ptr, MemoryKind) override {
    Runtime const& runtime = Runtime::get();
    bool const peers = PeerMemory::get().remove(ptr);  // before the address can be allocated again
    int const code = runtime.hsa_amd_memory_pool_free(reinterpret_cast<void*>(ptr));
    if (code != 0 && peers) PeerMemory::get().add(ptr);
    runtime.check_code(runtime.hsa_amd_memory_pool_free, code);
  }

  /// Memory of any owner in this process, on any GPU, as far as the runtime knows it.
  std::optional<MemoryInfo> memory_info(Address ptr) override {
    auto const range = range_around(Runtime::get(), ptr);
    if (!range) return std::nullopt;
    if (!range->gpu) return MemoryInfo{MemoryKind::host, range->host, range->size, -1};
    return MemoryInfo{MemoryKind::device, range->device, range->size, *range->gpu};
  }

  /// A host range that is not locked, or only partly, is copied too: the runtime locks it during the copy.
  void copy(Address dst, Address src, std::uint64_t size) override {
    Runtime const& runtime = Runtime::get();
    auto const to = reach(runtime, dst, size, index_), from = reach(runtime, src, size, index_);
    if (to && from && (to->is_gpu || from->is_gpu)) {
      copy_and_wait(runtime, *to, *from, size);
    } else {
      copy_by_runtime(runtime, {dst, 0, src, 0, size, 1});
    }
  }

  // ---- queues ----

  std::unique_ptr<VendorQueue> make_queue() override {
    auto [queue, thread] = hsa::make_queue(Runtime::get(), index_);
    std::lock_guard const guard(mutex_);
    std::erase_if(threads_, [](auto const& thread) { return thread.expired(); });
    threads_.push_back(thread);
    return std::move(queue);
  }

  std::unique_ptr<VendorQueue> adopt_queue(std::uintptr_t handle) override {
    throw Unsupported(name_ + " cannot adopt the queue " + describe(handle) +
                      ": HSA's queues run no copies; make one with pinning.Queue, or adopt a HIP stream on a device of "
                      "the plugin hip");
  }

  /// Waits for all queues of this device made here; the runtime does not know of other libraries' copies.
  void synchronize() override {
    Runtime::get();
    std::vector<std::shared_ptr<HsaQueueThread>> threads;
    {
      std::lock_guard const guard(mutex_);
      for (auto const& entry : threads_) {
        if (auto thread = entry.lock()) threads.push_back(std::move(thread));
      }
    }
    for (auto const& thread : threads) wait_for_all(*thread);
  }

 private:
  std::string text(int attribute) const {
    Runtime const& runtime = Runtime::get();
    char value[64] = "";
    runtime.check(runtime.hsa_agent_get_info, agent_, attribute, value);
    return {value, strnlen(value, sizeof value)};
  }

  static Address vendor_lock(Runtime const& runtime, Address ptr, std::uint64_t size, bool coarse) {
    auto* const host = reinterpret_cast<void*>(ptr);
    auto* const agents = const_cast<Handle*>(runtime.gpus.data());
    int const count = static_cast<int>(runtime.gpus.size());
    void* agent_ptr = nullptr;
    int const code =
        coarse ? runtime.hsa_amd_memory_lock(host, size, agents, count, &agent_ptr)
               : runtime.hsa_amd_memory_lock_to_pool(host, size, agents, count, runtime.coherent_pool, 0, &agent_ptr);
    if (code == 0) return reinterpret_cast<Address>(agent_ptr);
    throw VendorError(runtime.failed(
        coarse ? "hsa_amd_memory_lock" : "hsa_amd_memory_lock_to_pool", code,
        code == HSA_STATUS_ERROR ? "some of the memory is not mapped, may not be written, or is of the runtime's own "
                                   "allocation: map files private and writable (mmap.ACCESS_COPY, numpy's mode 'c')"
                                 : ""));
  }

  std::string const name_;
  int const index_;
  Handle agent_{}, own_pool_{};
  std::vector<Handle> peers_;  // other GPUs that can reach `own_pool_`
  std::mutex mutex_;
  std::vector<std::weak_ptr<HsaQueueThread>> threads_;
};

}  // namespace

Vendor const hsa_vendor{
    "hsa",
    [] { return static_cast<unsigned>(Runtime::get().gpus.size()); },
    [](unsigned index) -> std::unique_ptr<VendorDevice> { return std::make_unique<HsaDevice>(index); },
    [] { return Runtime::get().library(); },
};

}  // namespace pinning
