// SPDX-License-Identifier: Apache-2.0
// Intel's and other devices, through Unified Runtime.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "../devices.hpp"
#include "ur_platforms.hpp"
#include "ur_queue.hpp"

namespace pinning {

namespace {

using namespace ur;

/// For an in-order queue whose events record the time.
Properties const profiling{UR_STRUCTURE_TYPE_QUEUE_PROPERTIES, nullptr, UR_QUEUE_FLAG_PROFILING_ENABLE};

/// The ranges locked on a device, by base: two maps may lock the same bytes.
class Held {
 public:
  using Range = std::multimap<Address, std::uint64_t>::node_type;

  /// Made before the vendor's lock, so that nothing can fail after it.
  static Range range(Address ptr, std::uint64_t size) {
    std::multimap<Address, std::uint64_t> one{{ptr, size}};
    return one.extract(one.begin());
  }

  void enter(Range range) {
    std::lock_guard const guard(mutex_);
    largest_ = std::max(largest_, range.mapped());
    ranges_.insert(std::move(range));
  }

  /// Removes the smallest range that starts at `ptr`: the others stay covered. Empty if there is none.
  Range leave(Address ptr) {
    std::lock_guard const guard(mutex_);
    auto const [first, last] = ranges_.equal_range(ptr);
    auto const smallest = std::min_element(first, last, [](auto& one, auto& other) { return one.second < other.second; });
    return smallest != last ? ranges_.extract(smallest) : Range();
  }

  /// The largest range around `ptr`.
  std::optional<Pinned> around(Address ptr) {
    std::lock_guard const guard(mutex_);
    std::optional<Pinned> found;
    for (auto each = ranges_.upper_bound(ptr); each != ranges_.begin();) {
      --each;
      auto const [base, size] = *each;
      if (ptr - base >= largest_) break;
      if (ptr - base < size && (!found || size > found->size)) found = Pinned{base, size, base};
    }
    return found;
  }

 private:
  std::mutex mutex_;
  std::multimap<Address, std::uint64_t> ranges_;
  std::uint64_t largest_ = 0;  // size of the largest range ever entered
};

/// Host memory is locked in the context of the platform, by urUSMHostAllocRegisterExp if loader and adapter have it,
/// else by urUSMImportExp. An import is a hint: the adapter may pin nothing and report success. Both take whole pages,
/// which Unified Runtime treats as host allocations; their device pointer is the host pointer.
class UrDevice : public VendorDevice {
 public:
  explicit UrDevice(unsigned index)
      : name_("ur:" + std::to_string(index)),
        platform_(Platforms::get().of_device(index)),
        device_(platform_.context.devices[index - platform_.first]) {}

  std::string const& name() const noexcept override { return name_; }
  std::uintptr_t native_handle() override { return reinterpret_cast<std::uintptr_t>(device_); }
  std::uintptr_t native_context() override { return reinterpret_cast<std::uintptr_t>(context(Loader::get())); }

  std::string description() override {
    Loader const& loader = Loader::get();
    char text[256] = "";
    loader.check(loader.urDeviceGetInfo, device_, UR_DEVICE_INFO_NAME, sizeof text, text, nullptr);
    return text + (" (" + platform_.context.adapter + ")");
  }

  /// Most devices have all three.
  std::vector<MemoryKind> memory_kinds() override {
    Loader const& loader = Loader::get();
    std::vector<MemoryKind> kinds;
    for (auto const& [kind, support] : {std::pair{MemoryKind::host, int{UR_DEVICE_INFO_USM_HOST_SUPPORT}},
                                        std::pair{MemoryKind::device, int{UR_DEVICE_INFO_USM_DEVICE_SUPPORT}},
                                        std::pair{MemoryKind::shared, int{UR_DEVICE_INFO_USM_SINGLE_SHARED_SUPPORT}}}) {
      auto const flags = loader.ask<std::uint32_t>(loader.urDeviceGetInfo, device_, support);
      if ((flags & UR_DEVICE_USM_ACCESS_CAPABILITY_FLAG_ACCESS) != 0) kinds.push_back(kind);
    }
    return kinds;
  }

  /// No query reports this. So this unlocks a page that is not locked: an adapter that can lock returns anything
  /// but "unsupported".
  bool can_lock() override {
    Loader const& loader = Loader::get();
    void* const in = context(loader);
    std::size_t const size = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    void* const page = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) throw std::bad_alloc();
    bool can = false;
    for (auto const& unlock : {loader.urUSMHostAllocUnregisterExp, loader.urUSMReleaseExp}) {
      can = can || (unlock && unlock(in, page) != UR_RESULT_ERROR_UNSUPPORTED_FEATURE);
    }
    munmap(page, size);
    return can;
  }

  /// Enables access for the device that uses this one's memory, if both are of one platform. Without access, no adapter
  /// promises more than copies through the host.
  MemoryConnection connection(VendorDevice& other) override {
    auto* const user = dynamic_cast<UrDevice*>(&other);
    if (user == nullptr || user == this) return VendorDevice::connection(other);
    Loader const& loader = Loader::get();
    if (&user->platform_ != &platform_ || !loader.urUsmP2PPeerAccessGetInfoExp) return MemoryConnection::none;
    try {
      int const asked = UR_EXP_PEER_INFO_UR_PEER_ACCESS_SUPPORT;
      if (loader.ask<int>(loader.urUsmP2PPeerAccessGetInfoExp, user->device_, device_, asked) == 0) {
        return MemoryConnection::none;
      }
      loader.check(loader.urUsmP2PEnablePeerAccessExp, user->device_, device_);
    } catch (VendorError const& error) {
      if (error.call.code == UR_RESULT_ERROR_UNSUPPORTED_FEATURE) return MemoryConnection::none;
      if (error.call.code != UR_RESULT_ERROR_INVALID_OPERATION) throw;  // some adapters: already enabled
    }
    return MemoryConnection::unified;
  }

  std::vector<std::string> problems() override {
    auto problems = Platforms::get().problems;
    Loader const& loader = Loader::get();
    if (!loader.urUSMHostAllocRegisterExp && platform_.context.adapter == level_zero) {
      problems.push_back("this release of " + loader.name() +
                   " has no urUSMHostAllocRegisterExp, so memory is locked by urUSMImportExp, which may do nothing and "
                   "say that all went well: pip install 'intel-cmplr-lib-ur>=2026.2'");
    }
    return problems;
  }

  // ---- locking ----

  Address lock(Address ptr, std::uint64_t size, LockOptions options) override {
    Loader const& loader = Loader::get();
    Pages const pages = Pages::of(ptr, size);
    if (pages.end <= pages.start) {
      throw InvalidRange(describe(ptr, size) + " cannot be locked: it reaches the top of the address space");
    }
    auto range = Held::range(ptr, size);
    auto const check = [&](std::vector<Pages> const& to_register) {
      for (Address const end : {ptr, ptr + (size - 1)}) {
        if (std::ranges::any_of(to_register, [&](Pages const& each) { return each.start <= end && end < each.end; })) {
          refuse_usm(loader, end);
        }
      }
    };
    platform_.registrations.lock(pages, check, options.access == Access::writable);
    held_.enter(std::move(range));
    return ptr;
  }

  void unlock(Address ptr) override {
    Loader::get();
    auto range = held_.leave(ptr);
    if (range.empty()) throw NotLocked("no range that starts at " + describe(ptr) + " is locked on " + name_);
    try {
      platform_.registrations.unlock(Pages::of(ptr, range.mapped()));
    } catch (...) {
      held_.enter(std::move(range));
      throw;
    }
  }

  /// The range around `ptr` locked on this device, or else another owner's host allocation or registration. The rest of
  /// a page that is only partly locked does not count.
  std::optional<Pinned> is_pinned(Address ptr) override {
    Loader const& loader = Loader::get();
    if (auto const ours = held_.around(ptr)) return ours;
    if (is_ours_or_null(ptr) || usm_type(loader, ptr) != UR_USM_TYPE_HOST) return std::nullopt;
    auto const allocation = usm(loader, ptr, UR_USM_TYPE_HOST);
    // It may have been freed since the first query, or be memory that another thread has just locked here.
    if (allocation.size == 0 || is_ours_or_null(ptr)) return std::nullopt;
    return Pinned{allocation.base, allocation.size, allocation.base};
  }

  /// Unified Runtime guarantees neither.
  CoherenceSupport coherence() const noexcept override { return {}; }

  // ---- memory ----

  /// Host memory is for all devices of the platform; its device address is the host address.
  Address allocate(std::uint64_t size, MemoryKind kind, bool write_combined) override {
    if (write_combined) throw Unsupported(name_ + " has no write-combined memory: Unified Runtime has no such call");
    Loader const& loader = Loader::get();
    void* const in = context(loader);
    void* made = nullptr;
    switch (kind) {
      case MemoryKind::host:
        loader.check(loader.urUSMHostAlloc, in, nullptr, nullptr, size, &made);
        break;
      case MemoryKind::device:
        loader.check(loader.urUSMDeviceAlloc, in, device_, nullptr, nullptr, size, &made);
        break;
      case MemoryKind::shared:
        loader.check(loader.urUSMSharedAlloc, in, device_, nullptr, nullptr, size, &made);
        break;
    }
    return reinterpret_cast<Address>(made);
  }

  void free(Address ptr, MemoryKind) override {
    Loader const& loader = Loader::get();
    loader.check(loader.urUSMFree, context(loader), pointer(ptr));
  }

  /// Knows only the platform's context; others cannot be queried.
  std::optional<MemoryInfo> memory_info(Address ptr) override {
    Loader const& loader = Loader::get();
    if (auto const ours = held_.around(ptr)) return MemoryInfo{MemoryKind::host, ours->base, ours->size, -1};
    if (is_ours_or_null(ptr)) return std::nullopt;
    int const type = usm_type(loader, ptr);
    if (type != UR_USM_TYPE_HOST && !is_of_a_device(type)) return std::nullopt;
    auto const allocation = usm(loader, ptr, type);
    if (allocation.size == 0 || is_ours_or_null(ptr)) return std::nullopt;  // as in `is_pinned`
    if (type == UR_USM_TYPE_HOST) return MemoryInfo{MemoryKind::host, allocation.base, allocation.size, -1};
    auto const& devices = platform_.context.devices;
    auto const place = std::ranges::find(devices, allocation.device);
    int const index = place == devices.end() ? -1 : static_cast<int>(platform_.first + (place - devices.begin()));
    return MemoryInfo{type == UR_USM_TYPE_DEVICE ? MemoryKind::device : MemoryKind::shared, allocation.base,
                      allocation.size, index};
  }

  void copy(Address dst, Address src, std::uint64_t size) override {
    Loader const& loader = Loader::get();
    void* const queue = own_queue(loader);
    loader.check(loader.urEnqueueUSMMemcpy, queue, true, pointer(dst), pointer(src), size, 0, nullptr, nullptr);
  }

  // ---- queues ----

  std::unique_ptr<VendorQueue> make_queue() override {
    Loader const& loader = Loader::get();
    bool const calls = calls_functions(loader);  // first, because it may fail
    void* made = nullptr;
    loader.check(loader.urQueueCreate, context(loader), device_, &profiling, &made);
    return wrap(made, true, calls);
  }

  /// The queue's owner keeps it alive: the loader crashes on a released one.
  std::unique_ptr<VendorQueue> adopt_queue(std::uintptr_t handle) override {
    Loader const& loader = Loader::get();
    void* const queue = reinterpret_cast<void*>(handle);
    if (loader.ask<void*>(loader.urQueueGetInfo, queue, UR_QUEUE_INFO_DEVICE) != device_) {
      throw Unsupported("queue " + describe(handle) + " is not one of " + name_ + ": adopt it on its own device");
    }
    if (loader.ask<void*>(loader.urQueueGetInfo, queue, UR_QUEUE_INFO_CONTEXT) != context(loader)) {
      throw Unsupported("queue " + describe(handle) +
                        " is in another context than the memory that pinning allocates and locks on " + name_ +
                        ", which it cannot reach there: create it in the `context` of the device");
    }
    auto const flags = loader.ask<std::uint32_t>(loader.urQueueGetInfo, queue, UR_QUEUE_INFO_FLAGS);
    if ((flags & UR_QUEUE_FLAG_OUT_OF_ORDER_EXEC_MODE_ENABLE) != 0) {
      throw Unsupported("queue " + describe(handle) + " of " + name_ + " is out of order: create one that is in order");
    }
    return wrap(queue, false, calls_functions(loader));
  }

  /// Waits for all queues that were made or adopted here; no adapter has a call for more.
  void synchronize() override {
    Loader const& loader = Loader::get();
    std::vector<std::shared_ptr<QueueHandle>> open;
    {
      std::lock_guard const guard(mutex_);
      std::erase_if(queues_, [](auto const& queue) { return queue.expired(); });
      for (auto const& each : queues_) {
        if (auto queue = each.lock()) open.push_back(std::move(queue));
      }
    }
    for (auto const& queue : open) {
      int code = 0;
      try {
        queue->use(loader.urQueueFinish, [&] { code = loader.urQueueFinish(queue->handle); });
      } catch (Unsupported const&) {  // it is closed
      }
      loader.check_code(loader.urQueueFinish, code);
    }
  }

 private:
  /// The allocation or registration around an address, as the context knows it.
  struct Usm {
    Address base;
    std::uint64_t size;
    void* device;
  };

  static bool is_of_a_device(int type) { return type == UR_USM_TYPE_DEVICE || type == UR_USM_TYPE_SHARED; }

  /// The loader refuses queries of null; and memory locked here is no allocation.
  bool is_ours_or_null(Address ptr) { return ptr == 0 || platform_.registrations.holds(ptr); }

  /// `type` is from `usm_type`. If the memory has been freed meanwhile, the size is 0.
  Usm usm(Loader const& loader, Address ptr, int type) {
    return {ask<Address>(loader, ptr, UR_USM_ALLOC_INFO_BASE_PTR),
            ask<std::size_t>(loader, ptr, UR_USM_ALLOC_INFO_SIZE),
            is_of_a_device(type) ? ask<void*>(loader, ptr, UR_USM_ALLOC_INFO_DEVICE) : nullptr};
  }
  int usm_type(Loader const& loader, Address ptr) { return ask<int>(loader, ptr, UR_USM_ALLOC_INFO_TYPE); }
  template <class Value>
  Value ask(Loader const& loader, Address ptr, int property) {
    return loader.ask<Value>(loader.urUSMGetMemAllocInfo, context(loader), pointer(ptr), property);
  }

  void refuse_usm(Loader const& loader, Address ptr) {
    int const type = usm_type(loader, ptr);
    if (type == UR_USM_TYPE_HOST) {
      // Importing it would succeed, and releasing it would undo its owner's registration.
      throw VendorAlreadyPinned({"urUSMGetMemAllocInfo", type, "UR_USM_TYPE_HOST",
                                 "someone else has pinned the memory at " + describe(ptr)});
    }
    if (is_of_a_device(type)) {
      throw InvalidRange(describe(ptr) + " cannot be locked for " + name_ + ": it is " +
                         (type == UR_USM_TYPE_DEVICE ? "device memory" : "memory shared with a device") +
                         ", not host memory");
    }
  }

  void* context(Loader const& loader) { return platform_.context.handle(loader); }

  /// For `copy`: made at first use and never released. If two threads make one at once, one of the two is released.
  void* own_queue(Loader const& loader) {
    if (void* const known = own_queue_.load()) return known;
    void *made = nullptr, *none = nullptr;
    loader.check(loader.urQueueCreate, context(loader), device_, nullptr, &made);
    if (own_queue_.compare_exchange_strong(none, made)) return made;
    loader.urQueueRelease(made);
    return none;
  }

  /// Whether queues can call host functions: only the newest loaders and drivers have this.
  bool calls_functions(Loader const& loader) {
    if (!loader.urEnqueueHostTaskExp) return false;
    bool can = false;
    int const code = loader.urDeviceGetInfo(device_, UR_DEVICE_INFO_ENQUEUE_HOST_TASK_SUPPORT_EXP, sizeof can, &can,
                                            nullptr);
    if (code == UR_RESULT_ERROR_INVALID_ENUMERATION || code == UR_RESULT_ERROR_UNSUPPORTED_ENUMERATION) {
      return false;  // the adapter is older
    }
    loader.check_code(loader.urDeviceGetInfo, code);
    return can;
  }

  std::unique_ptr<VendorQueue> wrap(void* handle, bool owned, bool calls) {
    auto const queue = std::make_shared<QueueHandle>(handle, name_, owned);
    {
      std::lock_guard const guard(mutex_);
      std::erase_if(queues_, [](auto const& each) { return each.expired(); });
      queues_.push_back(queue);
    }
    return std::make_unique<ur::Queue>(queue, name_, calls);
  }

  std::string const name_;
  Platform& platform_;
  void* const device_;
  Held held_;
  std::atomic<void*> own_queue_ = nullptr;
  std::mutex mutex_;
  std::vector<std::weak_ptr<QueueHandle>> queues_;
};

}  // namespace

Vendor const ur_vendor{
    "ur",
    [] { return Platforms::get().count(); },
    [](unsigned index) -> std::unique_ptr<VendorDevice> { return std::make_unique<UrDevice>(index); },
    [] { return Platforms::get().library(); },
};

}  // namespace pinning
