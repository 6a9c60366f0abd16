// SPDX-License-Identifier: Apache-2.0
// AMD GPUs, by the HSA runtime. The rules are those of Python's plugin pinning_hsa.
#include <map>
#include <mutex>

#include "hsa_runtime.hpp"
#include "devices.hpp"

namespace pinning {

namespace {

using namespace hsa;

/// What is locked here, for all devices: locks are the process's, not a device's, and the runtime cannot always tell
/// what is locked, nor does it count locks reliably. So no two locks may overlap, and this is where that is known.
class Locks {
 public:
  static Locks& get() {
    static Locks* const only = new Locks;
    return *only;
  }

  /// Enters a range before it is locked; false where it shares a byte with another.
  bool enter(Address base, std::uint64_t size) {
    std::lock_guard const guard(mutex_);
    auto const after = locks_.lower_bound(base + size);
    if (after != locks_.begin() && last(*std::prev(after)) >= base) return false;
    locks_[base] = {size, std::nullopt};
    return true;
  }
  void locked(Address base, Address device_ptr) {
    std::lock_guard const guard(mutex_);
    locks_[base].device_ptr = device_ptr;
  }
  void leave(Address base) {
    std::lock_guard const guard(mutex_);
    locks_.erase(base);
  }
  /// The range that holds `ptr`, once it is locked.
  std::optional<Pinned> around(Address ptr) {
    std::lock_guard const guard(mutex_);
    auto const after = locks_.upper_bound(ptr);
    if (after == locks_.begin()) return std::nullopt;
    auto const& each = *std::prev(after);
    if (last(each) < ptr || !each.second.device_ptr) return std::nullopt;
    return Pinned{each.first, each.second.size, *each.second.device_ptr};
  }

 private:
  struct Lock {
    std::uint64_t size;
    std::optional<Address> device_ptr;
  };
  static Address last(std::pair<Address const, Lock> const& each) { return each.first + (each.second.size - 1); }

  std::mutex mutex_;
  std::map<Address, Lock> locks_;
};

PointerInfo pointer_info(Runtime const& runtime, Address ptr) {
  PointerInfo info{};
  info.size = sizeof info;
  int const code = runtime.hsa_amd_pointer_info(reinterpret_cast<void*>(ptr), &info, nullptr, nullptr, nullptr);
  runtime.check("hsa_amd_pointer_info", code);
  return info;
}

bool is_pinned_host(Runtime const& runtime, PointerInfo const& info) {
  if (info.type == HSA_EXT_POINTER_TYPE_LOCKED) return true;
  return info.type == HSA_EXT_POINTER_TYPE_HSA && !runtime.is_gpu(info.agentOwner);
}

[[noreturn]] void already_pinned(Address ptr, std::uint64_t size, int type) {
  throw VendorAlreadyPinned(
      {"hsa_amd_pointer_info", type,
       type == HSA_EXT_POINTER_TYPE_HSA ? "HSA_EXT_POINTER_TYPE_HSA" : "HSA_EXT_POINTER_TYPE_LOCKED",
       describe(ptr, size) + " is pinned already, in whole or in part, and HSA would lock it twice"});
}

class HsaDevice : public LockingDevice {
 public:
  explicit HsaDevice(unsigned index) : LockingDevice("hsa:" + std::to_string(index)) {
    std::size_t const count = Runtime::get().gpus.size();
    if (index >= count) {
      throw Unavailable("there is no hsa:" + std::to_string(index) + ": this process sees " + std::to_string(count) +
                        ", from hsa:0 on");
    }
  }

  /// For all GPUs: the device pointer is the same on each.
  Address lock(Address ptr, std::uint64_t size, Wish wish) override {
    Runtime& runtime = Runtime::get();
    for (Address const end : {ptr, ptr + (size - 1)}) {
      if (auto const info = pointer_info(runtime, end); is_pinned_host(runtime, info)) {
        already_pinned(ptr, size, info.type);
      }
    }
    if (!Locks::get().enter(ptr, size)) already_pinned(ptr, size, HSA_EXT_POINTER_TYPE_LOCKED);
    try {
      Address const device_ptr = vendor_lock(runtime, ptr, size, wish.grain == Grain::coarse);
      Locks::get().locked(ptr, device_ptr);
      return device_ptr;
    } catch (...) {
      Locks::get().leave(ptr);
      throw;
    }
  }

  void unlock(Address ptr) override {
    Runtime const& runtime = Runtime::get();
    runtime.check("hsa_amd_memory_unlock", runtime.hsa_amd_memory_unlock(reinterpret_cast<void*>(ptr)));
    Locks::get().leave(ptr);
  }

  /// Where the kernel driver supports shared virtual memory, the runtime does not know what others have locked.
  std::optional<Pinned> is_pinned(Address ptr) override {
    Runtime const& runtime = Runtime::get();
    if (auto const ours = Locks::get().around(ptr)) return ours;
    PointerInfo const info = pointer_info(runtime, ptr);
    Address const base = reinterpret_cast<Address>(info.hostBaseAddress);
    if (!is_pinned_host(runtime, info) || ptr - base >= info.sizeInBytes) return std::nullopt;
    return Pinned{base, info.sizeInBytes, reinterpret_cast<Address>(info.agentBaseAddress)};
  }

  Grains grains() const noexcept override { return {.fine = true, .coarse = true}; }

 private:
  static Address vendor_lock(Runtime& runtime, Address ptr, std::uint64_t size, bool coarse) {
    auto* const host = reinterpret_cast<void*>(ptr);
    Handle* const agents = runtime.gpus.data();
    int const count = static_cast<int>(runtime.gpus.size());
    void* agent_ptr = nullptr;
    int const code =
        coarse ? runtime.hsa_amd_memory_lock(host, size, agents, count, &agent_ptr)
               : runtime.hsa_amd_memory_lock_to_pool(host, size, agents, count, runtime.coherent_pool, 0, &agent_ptr);
    if (code == 0) return reinterpret_cast<Address>(agent_ptr);
    throw VendorError(runtime.failed(
        coarse ? "hsa_amd_memory_lock" : "hsa_amd_memory_lock_to_pool", code,
        code == HSA_STATUS_ERROR ? "some of the memory is not mapped, may not be written, or is of the runtime's own "
                                   "allocation: map files private and writable"
                                 : ""));
  }
};

}  // namespace

std::unique_ptr<VendorDevice> make_hsa(unsigned index) { return std::make_unique<HsaDevice>(index); }

}  // namespace pinning
