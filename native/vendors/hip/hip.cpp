// SPDX-License-Identifier: Apache-2.0
// AMD GPUs, through the HIP runtime.
#include <atomic>

#include "../devices.hpp"
#include "hip_queue.hpp"

namespace pinning {

namespace {

using namespace hip;

constexpr char advice[] =
    "is all of it mapped, and writable? HIP has no read-only registration: map a file private and writable "
    "(mmap.ACCESS_COPY, numpy's mode 'c')";

class HipDevice : public VendorDevice {
 public:
  explicit HipDevice(unsigned index)
      : name_("hip:" + std::to_string(index)),
        runtime_(Runtime::get()),
        index_(index),
        spare_events_(std::make_shared<SpareEvents>(runtime_, index)) {}

  std::string const& name() const noexcept override { return name_; }

  std::string description() override {
    runtime_.started().check();
    char text[256] = "";
    runtime_.check(runtime_.hipDeviceGetName, text, sizeof text, static_cast<int>(index_));
    return text;
  }

  std::string pci_address() override {
    runtime_.started().check();
    return pinning::pci_address([&](int asked) { return of_device(asked); }, hipDeviceAttributePciDomainID,
                                hipDeviceAttributePciBusId, hipDeviceAttributePciDeviceId);
  }

  std::vector<MemoryKind> memory_kinds() override {
    runtime_.started().check();
    auto kinds = VendorDevice::memory_kinds();
    if (of_device(hipDeviceAttributeManagedMemory) != 0) kinds.push_back(MemoryKind::shared);
    return kinds;
  }

  /// Enables access for the GPU that uses this one's memory; libraries do the same. If no direct access is possible,
  /// the runtime copies between any two GPUs.
  MemoryConnection connection(VendorDevice& other) override {
    auto* const user = dynamic_cast<HipDevice*>(&other);
    if (user == nullptr || user == this) return VendorDevice::connection(other);
    runtime_.started().check();
    int const own = static_cast<int>(index_), users = static_cast<int>(user->index_);
    int reaches = 0;
    runtime_.check(runtime_.hipDeviceCanAccessPeer, &reaches, users, own);
    if (reaches == 0) return MemoryConnection::migratable;
    auto const current = user->here();
    int const code = runtime_.hipDeviceEnablePeerAccess(own, 0);
    if (code != hipErrorPeerAccessAlreadyEnabled) runtime_.check_code(runtime_.hipDeviceEnablePeerAccess, code);
    if (code != 0) runtime_.forget_error();
    return MemoryConnection::unified;
  }

  // ---- locking ----

  /// Older releases of the runtime accept a range that is already registered and then lose track of it, so both its
  /// ends are looked up first. A pinned range that reaches neither end is refused by newer releases only.
  Address lock(Address ptr, std::uint64_t size, LockOptions options) override {
    auto const current = here();
    char const* const function = "hipHostRegister";
    for (Address const end : {ptr, ptr + (size - 1)}) {
      if (!look_up(end)) continue;
      throw VendorAlreadyPinned(
          runtime_.failed(function, hipErrorHostMemoryAlreadyRegistered, describe(end) + " is pinned"));
    }
    unsigned const flags = hipHostRegisterPortable | hipHostRegisterMapped |
                           (options.coherence == Coherence::coarse ? hipExtHostRegisterCoarseGrained : 0);
    if (int const code = runtime_.hipHostRegister(pointer(ptr), size, flags); code != 0) {
      auto call = runtime_.failed(function, code, code == hipErrorInvalidValue ? advice : "");
      if (code == hipErrorHostMemoryAlreadyRegistered) throw VendorAlreadyPinned(std::move(call));
      throw VendorError(std::move(call));
    }
    void* device_ptr = nullptr;
    if (int const code = runtime_.hipHostGetDevicePointer(&device_ptr, pointer(ptr), 0); code != 0) {
      auto call = runtime_.failed("hipHostGetDevicePointer", code);
      runtime_.check(runtime_.hipHostUnregister, pointer(ptr));  // throws if the range is still locked
      throw VendorError(std::move(call));
    }
    return reinterpret_cast<Address>(device_ptr);
  }

  void unlock(Address ptr) override {
    auto const current = here();
    runtime_.check(runtime_.hipHostUnregister, pointer(ptr));
  }

  std::optional<Pinned> is_pinned(Address ptr) override {
    auto const current = here();
    return look_up(ptr);
  }

  CoherenceSupport coherence() const noexcept override { return {.fine = true, .coarse = true}; }
  std::string registration_domain() const override { return "hip"; }

  // ---- memory ----

  /// Host memory is pinned for every GPU; its device address is the host address.
  Address allocate(std::uint64_t size, MemoryKind kind, bool write_combined) override {
    if (write_combined) throw Unsupported(name_ + " has no write-combined memory; allocate it without");
    auto const current = here();
    void* ptr = nullptr;
    switch (kind) {
      case MemoryKind::host:
        runtime_.check(runtime_.hipHostMalloc, &ptr, size, hipHostMallocPortable | hipHostMallocMapped);
        break;
      case MemoryKind::device: runtime_.check(runtime_.hipMalloc, &ptr, size); break;
      case MemoryKind::shared:
        runtime_.check(runtime_.hipMallocManaged, &ptr, size, hipMemAttachGlobal);
        break;
    }
    return reinterpret_cast<Address>(ptr);
  }

  /// The runtime waits until all work of the GPU is done.
  void free(Address ptr, MemoryKind kind) override {
    auto const current = here();
    if (kind == MemoryKind::host) {
      runtime_.check(runtime_.hipHostFree, pointer(ptr));
    } else {
      runtime_.check(runtime_.hipFree, pointer(ptr));
    }
  }

  /// hipPointerGetAttributes would need one call, but its hipMemoryType values differ between HIP 5 and HIP 6.
  std::optional<MemoryInfo> memory_info(Address ptr) override {
    auto const current = here();
    auto const size = size_around(ptr);
    if (!size) return std::nullopt;
    // The attribute is the host address of registered memory, for which hipMemGetAddressRange gives no base.
    Address base, managed, host = 0, device = 0;
    if (!attribute(HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR, ptr, base)) return std::nullopt;
    if (!attribute(HIP_POINTER_ATTRIBUTE_IS_MANAGED, ptr, managed)) return std::nullopt;
    if (managed == 0) {
      int const code = runtime_.hipPointerGetAttribute(&host, HIP_POINTER_ATTRIBUTE_HOST_POINTER, pointer(ptr));
      if (code == hipErrorInvalidValue) {  // the host cannot access it
        runtime_.forget_error();
        host = 0;
      } else if (!knows(runtime_.hipPointerGetAttribute, code)) {
        return std::nullopt;
      }
      if (host != 0) return MemoryInfo{MemoryKind::host, base, *size, -1};
    }
    if (!attribute(HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr, device)) return std::nullopt;
    auto const kind = managed != 0 ? MemoryKind::shared : MemoryKind::device;
    return MemoryInfo{kind, base, *size, static_cast<int>(device)};
  }

  /// The runtime refuses a host range that begins inside a lock and extends past its end.
  void copy(Address dst, Address src, std::uint64_t size) override {
    auto const current = here();
    runtime_.check(runtime_.hipMemcpy, pointer(dst), pointer(src), size, hipMemcpyDefault);
  }

  void synchronize() override {
    auto const current = here();
    runtime_.check(runtime_.hipDeviceSynchronize);
  }

  // ---- queues ----

  std::unique_ptr<VendorQueue> make_queue() override {
    runtime_.started().check();
    return std::make_unique<Queue>(runtime_, index_, spare_events_, waits_for_values());
  }

  /// `handle` is a hipStream_t that its owner keeps alive; 0 is this GPU's default stream, 2 the calling thread's.
  bool has_default_stream() const noexcept override { return true; }
  std::unique_ptr<VendorQueue> adopt_queue(std::uintptr_t handle) override {
    runtime_.started().check();
    auto adopted = std::make_unique<Queue>(runtime_, index_, spare_events_, waits_for_values(), handle);
    try {
      adopted->record();  // releases before 5.6 cannot report the device of a stream
    } catch (VendorError const& error) {
      if (error.call.function != "hipEventRecord" || error.call.code != hipErrorInvalidHandle) throw;
      throw Unsupported("stream " + describe(handle) + " is not on " + name_ + ": adopt it on its own device");
    }
    return adopted;
  }

 private:
  enum class Found : std::uint8_t { unknown, no, yes };

  int of_device(int asked) const {
    int value = 0;
    runtime_.check(runtime_.hipDeviceGetAttribute, &value, asked, static_cast<int>(index_));
    return value;
  }

  Current here() const {
    runtime_.started().check();
    return Current(runtime_, index_);
  }

  /// Requires the device to be current. The runtime does not know memory that was locked directly through HSA.
  std::optional<Pinned> look_up(Address ptr) const {
    Address host, managed, base;
    if (!attribute(HIP_POINTER_ATTRIBUTE_HOST_POINTER, ptr, host) || host != ptr) return std::nullopt;
    if (!attribute(HIP_POINTER_ATTRIBUTE_IS_MANAGED, ptr, managed) || managed != 0) return std::nullopt;
    if (!attribute(HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR, ptr, base)) return std::nullopt;
    auto const size = size_around(ptr);
    if (!size) return std::nullopt;
    void* device_ptr = nullptr;
    int const code = runtime_.hipHostGetDevicePointer(&device_ptr, pointer(base), 0);
    if (!knows(runtime_.hipHostGetDevicePointer, code)) return std::nullopt;
    return Pinned{base, *size, reinterpret_cast<Address>(device_ptr)};
  }

  /// For the size only: hipMemGetAddressRange gives no base for registered memory. HIP_POINTER_ATTRIBUTE_RANGE_SIZE has
  /// only 32 bits.
  std::optional<std::uint64_t> size_around(Address ptr) const {
    void* ignored = nullptr;
    std::size_t size = 0;
    int const code = runtime_.hipMemGetAddressRange(&ignored, &size, pointer(ptr));
    if (!knows(runtime_.hipMemGetAddressRange, code)) return std::nullopt;
    return size;
  }

  bool attribute(int name, Address ptr, Address& value) const {
    value = 0;  // a bool sets only the first byte
    return knows(runtime_.hipPointerGetAttribute, runtime_.hipPointerGetAttribute(&value, name, pointer(ptr)));
  }

  /// False for the codes that releases return for an unknown pointer, or one freed since the previous query.
  template <class Signature>
  bool knows(Function<Signature> const& function, int code) const {
    if (code != hipErrorInvalidValue && code != hipErrorInvalidDevicePointer && code != hipErrorNotFound) {
      runtime_.check_code(function, code);
      return true;
    }
    runtime_.forget_error();
    return false;
  }

  bool waits_for_values() {
    if (waits_ == Found::unknown) waits_ = try_waiting() ? Found::yes : Found::no;
    return waits_ == Found::yes;
  }

  /// Tests on a new stream whether streams of the device can wait for a word of any host memory. The attribute does not
  /// suffice: old releases, and new ones with GPU_STREAMOPS_CP_WAIT=1, accept only words of "signal memory", and refuse
  /// others only when a wait is submitted.
  bool try_waiting() {
    if (of_device(hipDeviceAttributeCanUseStreamWaitValue) == 0) return false;
    Address const word = allocate(4, MemoryKind::host, false);
    bool waits = true;
    try {
      Queue queue(runtime_, index_, spare_events_, true);
      queue.wait_value(word, 0);  // reached, whatever the word contains
      queue.write_value(word, 0);
      queue.synchronize();
      queue.close();
    } catch (VendorError const& error) {
      if (error.call.code != hipErrorInvalidValue && error.call.code != hipErrorNotSupported) {
        free(word, MemoryKind::host);
        throw;
      }
      waits = false;
    }
    free(word, MemoryKind::host);
    return waits;
  }

  std::string const name_;
  Runtime const& runtime_;
  Where const index_;
  std::shared_ptr<SpareEvents> const spare_events_;
  std::atomic<Found> waits_ = Found::unknown;
};

}  // namespace

Vendor const hip_vendor{
    "hip",
    [] { return static_cast<unsigned>(Runtime::get().count); },
    [](unsigned index) -> std::unique_ptr<VendorDevice> { return std::make_unique<HipDevice>(index); },
    Runtime::library,
};

}  // namespace pinning
