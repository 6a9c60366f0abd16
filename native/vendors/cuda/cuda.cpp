// SPDX-License-Identifier: Apache-2.0
// NVIDIA GPUs, through the CUDA driver API.
#include <array>
#include <atomic>

#include "../../base/mappings.hpp"
#include "../devices.hpp"
#include "cuda_queue.hpp"
#include "cuda_sleepable.hpp"

namespace pinning {

namespace {

using namespace cuda;

constexpr char confidential[] =
    "under confidential computing no memory of the program's own is locked: copies of it are staged; allocate with "
    "pinning.alloc(n, \"host\")";

std::string range(Address ptr, std::uint64_t size) { return describe(ptr, size) + " cannot be locked: "; }

/// Whether any part of the range is mapped read-only. Throws InvalidRange if any part is not mapped, or is a private
/// read-only mapping of a file, on which the driver hangs.
bool needs_read_only(Address ptr, std::uint64_t size) {
  auto const mapped = mappings(ptr, size);
  if (auto const hole = gap(ptr, size, mapped)) {
    throw InvalidRange(range(ptr, size) + "there is no memory at " + describe(*hole));
  }
  bool writable = true;
  for (auto const& mapping : mapped) {
    if (!mapping.file.empty() && !mapping.writable && !mapping.shared) {
      throw InvalidRange(range(ptr, size) + "it is a private read-only mapping of " + mapping.file +
                     ", on which the NVIDIA driver hangs; map the file shared (mmap.ACCESS_READ does) or private and "
                     "writable (mmap.ACCESS_COPY, numpy's mode 'c')");
    }
    writable = writable && mapping.writable;
  }
  return !writable;
}

/// Why the driver may have called the range invalid, and the remedy; empty if unknown.
std::string advice(Address ptr, std::uint64_t size, LockOptions options, unsigned flags) {
  auto const mapped = mappings(ptr, size);
  if (auto const hole = gap(ptr, size, mapped)) return "there is no memory at " + describe(*hole);
  for (auto const& mapping : mapped) {
    if (!mapping.writable && (flags & CU_MEMHOSTREGISTER_READ_ONLY) == 0) {
      return "the memory at " + describe(mapping.start) + " is mapped read only, " +
             (options.access == Access::writable
                ? "not writable as was said: say read_only=True, and if the GPU does not support that, map it writable"
                : "which this GPU does not support: map it writable");
    }
    bool in_memory = false;  // POSIX shared memory and anonymous mappings, memfd, System V
    for (char const* const place : {"/dev/", "/memfd:", "/SYSV"}) in_memory |= mapping.file.starts_with(place);
    if (mapping.shared && mapping.writable && !mapping.file.empty() && !in_memory) {
      return "the memory is a writable shared mapping of " + mapping.file +
          ", which the driver takes only from memory file systems: map it read only (mmap.ACCESS_READ), map it private "
          "(mmap.ACCESS_COPY), or keep the file under /dev/shm";
    }
  }
  return "";
}

class CudaDevice : public VendorDevice {
 public:
  /// The GPU in its primary context, or in `context`, which its owner keeps alive.
  explicit CudaDevice(unsigned index, Where context = 0)
      : name_("cuda:" + std::to_string(index)), driver_(Driver::get()), is_primary_(context == 0), context_(context) {
    driver_.check(driver_.cuDeviceGet, &device_, static_cast<int>(index));
    registers_read_only_ = attribute(CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED);
    capability_ = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  }

  std::string const& name() const noexcept override { return name_; }
  std::uintptr_t native_context() override {
    driver_.started().check();
    return context();
  }
  std::uint64_t context_number() override {
    if (number_ == 0) {
      Where const handle = native_context();
      unsigned long long number = handle;
      if (driver_.cuCtxGetId) driver_.check(driver_.cuCtxGetId, reinterpret_cast<void*>(handle), &number);
      number_ = number;
    }
    return number_;
  }

  std::string description() override {
    driver_.started().check();
    char text[256] = "";
    driver_.check(driver_.cuDeviceGetName, text, sizeof text, device_);
    return text;
  }

  std::string pci_address() override {
    driver_.started().check();
    return pinning::pci_address([&](int asked) { return attribute(asked); }, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID,
                                CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
  }

  std::vector<MemoryKind> memory_kinds() override {
    driver_.started().check();
    auto kinds = VendorDevice::memory_kinds();
    if (attribute(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY) != 0) kinds.push_back(MemoryKind::shared);
    return kinds;
  }

  /// Enables access in the context that uses this GPU's memory; libraries do the same. If no direct access is possible,
  /// the driver copies between any two GPUs.
  MemoryConnection connection(VendorDevice& other) override {
    auto* const user = dynamic_cast<CudaDevice*>(&other);
    if (user == nullptr || user == this) return VendorDevice::connection(other);
    driver_.started().check();
    int reaches = 0;
    driver_.check(driver_.cuDeviceCanAccessPeer, &reaches, user->device_, device_);
    if (reaches == 0) return MemoryConnection::migratable;
    auto* const own = reinterpret_cast<void*>(context());
    auto const current = user->here();
    int const code = driver_.cuCtxEnablePeerAccess(own, 0);
    if (code == CUDA_ERROR_TOO_MANY_PEERS) return MemoryConnection::migratable;
    if (code != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) driver_.check_code(driver_.cuCtxEnablePeerAccess, code);
    return MemoryConnection::unified;
  }

  /// GPUs linked by NVLink can access each other's memory with atomic operations; over PCIe they cannot.
  std::string link_to(VendorDevice& other) override {
    auto* const peer = dynamic_cast<CudaDevice*>(&other);
    if (peer == nullptr || peer == this) return {};
    driver_.started().check();
    int atomic = 0;
    int const asked = CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
    int const code = driver_.cuDeviceGetP2PAttribute(&atomic, asked, device_, peer->device_);
    return code == 0 && atomic != 0 ? "NVLink" : "";
  }

  std::vector<std::string> problems() override {
    driver_.started().check();
    if (attribute(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED) != 0) return {};
    return {name_ + " registers no host memory (CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED is 0): " + confidential};
  }

  // ---- locking ----

  Address lock(Address ptr, std::uint64_t size, LockOptions options) override {
    driver_.started().check();
    unsigned flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
    if (options.access != Access::writable && needs_read_only(ptr, size) && registers_read_only_ != 0) {
      flags |= CU_MEMHOSTREGISTER_READ_ONLY;
    }
    Current const current(driver_, context());
    auto* const host = reinterpret_cast<void*>(ptr);
    if (int const code = driver_.cuMemHostRegister_v2(host, size, flags); code != 0) {
      refuse(ptr, size, options, flags, code);
    }
    unsigned long long device_ptr = 0;
    if (int const code = driver_.cuMemHostGetDevicePointer_v2(&device_ptr, host, 0); code != 0) {
      driver_.check(driver_.cuMemHostUnregister, host);  // throws if the range is still locked
      throw VendorError(driver_.failed("cuMemHostGetDevicePointer", code));
    }
    return device_ptr;
  }

  /// The driver does not wait for copies in progress: they then fail, and the context with them, by "unspecified launch
  /// failure" (H200, driver 580).
  void unlock(Address ptr) override {
    auto const current = here();
    if (std::uint64_t const expected = expected_copies_; awaited_copies_ < expected) {
      synchronize_all();
      std::uint64_t awaited = awaited_copies_;
      while (awaited < expected && !awaited_copies_.compare_exchange_weak(awaited, expected)) {
      }
    }
    driver_.check(driver_.cuMemHostUnregister, reinterpret_cast<void*>(ptr));
  }
  void expect_copies_of_others() noexcept override { ++expected_copies_; }

  /// Needs no context.
  std::optional<Pinned> is_pinned(Address ptr) override {
    auto const range = range_around(ptr);
    if (!range || range->kind != MemoryKind::host) return std::nullopt;
    return Pinned{range->base, range->size, range->device_ptr};
  }

  /// Half of 512 GiB, which the driver refuses in one call.
  std::uint64_t largest_lock() const noexcept override { return std::uint64_t{256} << 30; }

  CoherenceSupport coherence() const noexcept override { return {.fine = true}; }  // the driver has no other kind
  std::string registration_domain() const override { return "cuda"; }

  // ---- memory ----

  bool locks_sooner() const noexcept override { return true; }

  /// Aligned to 256 bytes. Host memory is pinned for every GPU; its device address is the host address.
  Address allocate(std::uint64_t size, MemoryKind kind, bool write_combined) override {
    auto const current = here();
    void* host = nullptr;
    unsigned long long ptr = 0;
    switch (kind) {
      case MemoryKind::host: {
        unsigned const flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP |
                               (write_combined ? CU_MEMHOSTALLOC_WRITECOMBINED : 0);
        driver_.check(driver_.cuMemHostAlloc, &host, size, flags);
        return reinterpret_cast<Address>(host);
      }
      case MemoryKind::device: driver_.check(driver_.cuMemAlloc_v2, &ptr, size); break;
      case MemoryKind::shared:
        driver_.check(driver_.cuMemAllocManaged, &ptr, size, CU_MEM_ATTACH_GLOBAL);
        break;
    }
    return ptr;
  }

  /// The driver waits until all work of the GPU is done, but not before it unmaps memory.
  void free(Address ptr, MemoryKind kind) override {
    auto const current = here();
    if (kind == MemoryKind::host) {
      driver_.check(driver_.cuMemFreeHost, reinterpret_cast<void*>(ptr));
    } else if (sleepable_.has(ptr)) {
      synchronize_beside_captures();
      sleepable_.free(ptr);
    } else {
      driver_.check(driver_.cuMemFree_v2, ptr);
    }
  }

  Address allocate_sleepable(std::uint64_t size) override {
    auto const current = here();
    return sleepable_.allocate(size);
  }

  void set_awake(Address ptr, bool awake) override {
    auto const current = here();
    sleepable_.set_awake(ptr, awake);
  }

  /// Needs no context. Shared memory belongs to the GPU for which it was allocated.
  std::optional<MemoryInfo> memory_info(Address ptr) override {
    auto const range = range_around(ptr);
    if (!range) {
      SleepableMemory::refuse_asleep(ptr);
      return std::nullopt;
    }
    return MemoryInfo{range->kind, range->base, range->size, range->device};
  }

  /// The driver refuses a host range that is only partly locked, or that crosses from one lock into another.
  void copy(Address dst, Address src, std::uint64_t size) override {
    auto const current = here();
    for (Address const ptr : {dst, src}) SleepableMemory::refuse_asleep(ptr);
    driver_.check(driver_.cuMemcpy, dst, src, size);
    // A copy from pageable memory may return before its last bytes arrive.
    driver_.check(driver_.cuStreamSynchronize, nullptr);
  }

  void synchronize() override {
    auto const current = here();
    driver_.check(driver_.cuCtxSynchronize);
  }

  /// Freeing pinned memory waits for the same work and ends no capture, but takes 0.7 ms instead of 4 us (seen on an
  /// H200, driver 580; tests/vendors/cuda/test_real_graphs.py).
  void synchronize_beside_captures() override {
    auto const current = here();
    void* page = nullptr;
    driver_.check(driver_.cuMemHostAlloc, &page, 4096, 0);
    driver_.check(driver_.cuMemFreeHost, page);
  }

  // ---- queues ----

  std::unique_ptr<VendorQueue> make_queue() override {
    driver_.started().check();
    Where const its_context = context();
    return std::make_unique<Queue>(driver_, its_context, queues_, spare_events(its_context), moves_parts());
  }

  /// `handle` is a cudaStream_t, which its owner keeps alive: the driver crashes on a destroyed one. 0 and 1 are this
  /// GPU's legacy default stream, 2 is the calling thread's default stream.
  bool has_default_stream() const noexcept override { return true; }
  std::unique_ptr<VendorQueue> adopt_queue(std::uintptr_t handle) override {
    void* its_context = nullptr;
    {
      auto const current = here();
      driver_.check(driver_.cuStreamGetCtx, reinterpret_cast<void*>(handle), &its_context);
    }
    auto const where = reinterpret_cast<Where>(its_context);  // not the primary context if the program made its own
    int device = -1;
    {
      Current const current(driver_, where);
      driver_.check(driver_.cuCtxGetDevice, &device);
    }
    if (device != device_) {
      throw Unsupported("stream " + describe(handle) + " is on cuda:" + std::to_string(device) + ", not on " + name_ +
                        ": adopt it there");
    }
    bool const foreign = where != context();
    auto spares = foreign ? std::make_shared<SpareEvents>(driver_, where) : spare_events(where);
    return std::make_unique<Queue>(driver_, where, queues_, std::move(spares), moves_parts() && !foreign, handle, foreign);
  }

 private:
  int attribute(int asked) const {
    int value = 0;
    driver_.check(driver_.cuDeviceGetAttribute, &value, asked, device_);
    return value;
  }

  /// The kernel is compiled for compute capability 7.0. No module is loaded into a context that others own.
  bool moves_parts() const noexcept { return is_primary_ && capability_ >= 7; }

  /// An allocation or registration of any owner in this process. `base` is the host address if it is host memory.
  struct Range {
    MemoryKind kind;
    Address base, device_ptr;
    std::uint64_t size;
    int device;  // -1 for host memory
  };

  [[noreturn]] void refuse(Address ptr, std::uint64_t size, LockOptions options, unsigned flags, int code) {
    char const* const function = "cuMemHostRegister";
    if (code == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) throw VendorAlreadyPinned(driver_.failed(function, code));
    if (code == CUDA_ERROR_NOT_SUPPORTED) {
      throw VendorError(driver_.failed(function, code, confidential));
    }
    if (code != CUDA_ERROR_INVALID_VALUE) throw VendorError(driver_.failed(function, code));
    // For pinned memory that the driver itself has allocated it returns this code, not "already registered".
    auto call = driver_.failed(function, code, advice(ptr, size, options, flags));
    if (is_pinned(ptr) || is_pinned(ptr + (size - 1))) throw VendorAlreadyPinned(std::move(call));
    throw VendorError(std::move(call));
  }

  /// Wait for every GPU in use, because each may copy memory that another has locked. An error means that a device was
  /// lost before, which the program learns from its own calls.
  void synchronize_all() noexcept {
    int count = 0;
    if (driver_.cuDeviceGetCount(&count) != 0) return;
    for (int index = 0; index < count; ++index) {
      int device = 0, active = 0;
      unsigned flags = 0;
      void* context = nullptr;
      if (driver_.cuDeviceGet(&device, index) != 0) continue;
      if (driver_.cuDevicePrimaryCtxGetState(device, &flags, &active) != 0 || active == 0) continue;
      if (driver_.cuDevicePrimaryCtxRetain(&context, device) != 0) continue;
      if (driver_.cuCtxPushCurrent_v2(context) == 0) {
        driver_.cuCtxSynchronize();
        driver_.cuCtxPopCurrent_v2(&context);
      }
      driver_.cuDevicePrimaryCtxRelease_v2(device);
    }
  }

  std::optional<Range> range_around(Address ptr) {
    driver_.started().check();
    std::array asked{int{CU_POINTER_ATTRIBUTE_MEMORY_TYPE},      int{CU_POINTER_ATTRIBUTE_IS_MANAGED},
                     int{CU_POINTER_ATTRIBUTE_RANGE_START_ADDR}, int{CU_POINTER_ATTRIBUTE_RANGE_SIZE},
                     int{CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL},   int{CU_POINTER_ATTRIBUTE_HOST_POINTER}};
    auto const [type, managed, start, size, ordinal, host] = attributes(ptr, asked);
    if (type == 0 || size == 0) return std::nullopt;  // unknown to the driver
    auto const device = static_cast<int>(ordinal);
    if (managed != 0) return Range{MemoryKind::shared, start, start, size, device};
    if (type != CU_MEMORYTYPE_HOST) return Range{MemoryKind::device, start, start, size, device};
    // The driver gives the start of a range as a device address, equal in all contexts and usually the host address.
    Address base = start;
    if (host != ptr || ptr - start >= size) {
      std::array host_pointer{int{CU_POINTER_ATTRIBUTE_HOST_POINTER}};
      base = attributes(start, host_pointer)[0];
      if (base == 0) return std::nullopt;
    }
    return Range{MemoryKind::host, base, start, size, -1};
  }

  /// Queries all at once, so that they belong to one allocation. An attribute that the pointer lacks is 0.
  template <std::size_t count>
  std::array<std::uint64_t, count> attributes(Address ptr, std::array<int, count>& asked) {
    std::array<std::uint64_t, count> values{};  // zeroed: some attributes set only the first bytes
    std::array<void*, count> places;
    for (std::size_t i = 0; i < count; ++i) places[i] = &values[i];
    driver_.check(driver_.cuPointerGetAttributes, count, asked.data(), places.data(), ptr);
    return values;
  }

  /// Makes the device's context current. Throws Unavailable in a fork.
  Current here() {
    driver_.started().check();
    return Current(driver_, context());
  }

  /// The given context, or else the primary one, which the CUDA runtime and so every library uses. That is retained at
  /// its first use and never released, because memory locked in it may outlive this object's users.
  Where context() {
    if (Where const known = context_.load()) return known;
    void* retained = nullptr;
    driver_.check(driver_.cuDevicePrimaryCtxRetain, &retained, device_);
    Where none = 0;
    auto const context = reinterpret_cast<Where>(retained);
    if (!context_.compare_exchange_strong(none, context)) driver_.cuDevicePrimaryCtxRelease_v2(device_);
    return context;
  }

  std::shared_ptr<SpareEvents> spare_events(Where context) {
    std::lock_guard const guard(mutex_);
    if (!spare_events_) spare_events_ = std::make_shared<SpareEvents>(driver_, context);
    return spare_events_;
  }

  std::string const name_;
  std::shared_ptr<OpenQueues> const queues_ = std::make_shared<OpenQueues>(0);
  Driver const& driver_;
  int device_ = 0, registers_read_only_ = 0, capability_ = 0;
  bool const is_primary_;
  std::atomic<Where> context_;
  std::atomic<std::uint64_t> number_ = 0;  // of the context, once it was asked for
  SleepableMemory sleepable_{driver_, device_};
  std::mutex mutex_;
  std::shared_ptr<SpareEvents> spare_events_;  // of the primary context
  static inline std::atomic<std::uint64_t> expected_copies_ = 0, awaited_copies_ = 0;  // of others; of all GPUs
};

}  // namespace

std::unique_ptr<VendorDevice> cuda_device_of_context(std::uintptr_t context) {
  Driver const& driver = Driver::get();
  int index = 0;
  {
    Current const current(driver, context);
    driver.check(driver.cuCtxGetDevice, &index);
  }
  return std::make_unique<CudaDevice>(static_cast<unsigned>(index), context);
}

Vendor const cuda_vendor{
    "cuda",
    [] { return Driver::get().device_count(); },
    [](unsigned index) -> std::unique_ptr<VendorDevice> { return std::make_unique<CudaDevice>(index); },
    [] { return Driver::get().library(); },
};

}  // namespace pinning
