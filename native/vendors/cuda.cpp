// SPDX-License-Identifier: Apache-2.0
// NVIDIA GPUs, by the driver's own interface. 
#include <array>
#include <atomic>

#include "cuda_abi.hpp"
#include "library.hpp"
#include "devices.hpp"
#include "mappings.hpp"

namespace pinning {

namespace {

#define PINNING_ENUMERATOR(name, value) name = value,
enum { PINNING_CUDA_CONSTANTS(PINNING_ENUMERATOR) };
#undef PINNING_ENUMERATOR

class Driver : public cuda::Functions {
 public:
  Driver() : library_({"libcuda.so.1"}, "install the NVIDIA driver, which provides it") {
#define PINNING_GET(name, ...) library_.get(#name, this->name);
    PINNING_CUDA_FUNCTIONS(PINNING_GET)
#undef PINNING_GET
    int const code = cuInit(0);
    if (code != 0) {
      throw Unavailable("the NVIDIA driver does not start: " + failed("cuInit", code).text() + "; " + advice(code));
    }
  }

  /// Loaded and started once; again after each failure.
  static Driver& get() {
    static Driver& driver = *new Driver;  // not destroyed: programs lock until the end
    driver.started_.check();
    return driver;
  }

  void check(char const* function, int code) const {
    if (code != 0) throw VendorError(failed(function, code));
  }

  VendorCall failed(char const* function, int code, std::string advice = "") const {
    char const* name = nullptr;
    bool const known = cuGetErrorName(code, &name) == 0 && name != nullptr;
    return {function, code, known ? name : "unknown", std::move(advice)};
  }

 private:
  static char const* advice(int code) {
    switch (code) {
      case 3: return "CUDA does not work in a fork of a process that uses it: start processes by exec";
      case 34: return "the libcuda.so.1 found is the toolkit's stub: put the NVIDIA driver's before it";
      case 100: return "no NVIDIA GPU is visible: compare `nvidia-smi -L` with the variable CUDA_VISIBLE_DEVICES";
      case 803: return "the NVIDIA kernel module and libcuda.so.1 are of different versions: reboot, or install one "
                       "version of both";
      default: return "see whether `nvidia-smi` works";
    }
  }

  Library library_;
  Started started_{"CUDA"};
};

/// The context current in this thread, and afterwards whichever was before.
class Current {
 public:
  Current(Driver const& driver, void* context) : driver_(driver) {
    driver_.check("cuCtxPushCurrent", driver_.cuCtxPushCurrent_v2(context));
  }
  // Its code may be that of someone's earlier asynchronous work, which must not undo what was done here.
  ~Current() {
    void* popped;
    driver_.cuCtxPopCurrent_v2(&popped);
  }
  Current(Current const&) = delete;

 private:
  Driver const& driver_;
};

std::string range(Address ptr, std::uint64_t size) { return describe(ptr, size) + " cannot be locked: "; }

std::string hex(Address ptr) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(ptr));
  return text;
}

/// Whether the range lies, in whole or in part, in a mapping that may not be written. Throws InvalidRange where some of
/// it is not mapped, or is of the one kind that the driver never returns from.
bool needs_read_only(Address ptr, std::uint64_t size) {
  auto const found = mappings(ptr, size);
  if (auto const hole = gap(ptr, size, found)) {
    throw InvalidRange(range(ptr, size) + "there is no memory at " + hex(*hole));
  }
  bool writable = true;
  for (auto const& mapping : found) {
    if (!mapping.file.empty() && !mapping.writable && !mapping.shared) {
      throw InvalidRange(range(ptr, size) + "it is a private read-only mapping of " + mapping.file +
                         ", on which the NVIDIA driver hangs; map the file shared, or private and writable");
    }
    writable = writable && mapping.writable;
  }
  return !writable;
}

/// Why the driver may have called the range invalid, and the way out; empty when nothing is known.
std::string advice(Address ptr, std::uint64_t size, unsigned flags) {
  auto const found = mappings(ptr, size);
  if (auto const hole = gap(ptr, size, found)) return "there is no memory at " + hex(*hole);
  for (auto const& mapping : found) {
    if (!mapping.writable && (flags & CU_MEMHOSTREGISTER_READ_ONLY) == 0) {
      return "the memory at " + hex(mapping.start) +
             " is mapped read only, which this GPU does not support: map it writable";
    }
    bool in_memory = false;  // POSIX shared memory and anonymous mappings, memfd, System V
    for (char const* const place : {"/dev/", "/memfd:", "/SYSV"}) in_memory |= mapping.file.starts_with(place);
    if (mapping.shared && mapping.writable && !mapping.file.empty() && !in_memory) {
      return "the memory is a writable shared mapping of " + mapping.file +
             ", which the driver takes only from memory file systems: map it read only or private, or keep the file "
             "under /dev/shm";
    }
  }
  return "";
}

class CudaDevice : public LockingDevice {
 public:
  explicit CudaDevice(unsigned index)
      : LockingDevice("cuda:" + std::to_string(index)), driver_(Driver::get()) {
    int count = 0;
    driver_.check("cuDeviceGetCount", driver_.cuDeviceGetCount(&count));
    if (index >= static_cast<unsigned>(count)) {
      throw Unavailable("there is no cuda:" + std::to_string(index) + ": this process sees " + std::to_string(count) +
                        ", from cuda:0 on");
    }
    driver_.check("cuDeviceGet", driver_.cuDeviceGet(&device_, static_cast<int>(index)));
    int const asked = CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED;
    driver_.check("cuDeviceGetAttribute", driver_.cuDeviceGetAttribute(&registers_read_only_, asked, device_));
  }

  Address lock(Address ptr, std::uint64_t size, Wish wish) override {
    Driver const& driver = Driver::get();
    unsigned flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
    if (wish.access != Access::writable && needs_read_only(ptr, size) && registers_read_only_ != 0) {
      flags |= CU_MEMHOSTREGISTER_READ_ONLY;
    }
    Current const current(driver, context());
    auto* const host = reinterpret_cast<void*>(ptr);
    if (int const code = driver.cuMemHostRegister_v2(host, size, flags); code != 0) refuse(ptr, size, flags, code);
    unsigned long long device_ptr = 0;
    if (int const code = driver.cuMemHostGetDevicePointer_v2(&device_ptr, host, 0); code != 0) {
      driver.cuMemHostUnregister(host);
      throw VendorError(driver.failed("cuMemHostGetDevicePointer", code));
    }
    return device_ptr;
  }

  void unlock(Address ptr) override {
    Driver const& driver = Driver::get();
    Current const current(driver, context());
    driver.check("cuMemHostUnregister", driver.cuMemHostUnregister(reinterpret_cast<void*>(ptr)));
  }

  /// Needs no context.
  std::optional<Pinned> is_pinned(Address ptr) override {
    std::array asked{int{CU_POINTER_ATTRIBUTE_MEMORY_TYPE}, int{CU_POINTER_ATTRIBUTE_IS_MANAGED},
                     int{CU_POINTER_ATTRIBUTE_RANGE_START_ADDR}, int{CU_POINTER_ATTRIBUTE_RANGE_SIZE}};
    auto const [type, managed, start, size] = attributes(ptr, asked);
    if (type != CU_MEMORYTYPE_HOST || managed != 0 || size == 0) return std::nullopt;
    // The driver gives the start of a range as a device address, the same one in all contexts.
    std::array host{int{CU_POINTER_ATTRIBUTE_HOST_POINTER}};
    auto const [base] = attributes(start, host);
    if (base == 0) return std::nullopt;
    return Pinned{base, size, start};
  }

  /// The driver refuses 512 GiB in one call, so half of that.
  std::uint64_t largest_lock() const noexcept override { return std::uint64_t{256} << 30; }

  Grains grains() const noexcept override { return {.fine = true}; }  // the driver knows no other host memory

 private:
  [[noreturn]] void refuse(Address ptr, std::uint64_t size, unsigned flags, int code) {
    char const* const function = "cuMemHostRegister";
    Driver const& driver = Driver::get();
    if (code == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) throw VendorAlreadyPinned(driver.failed(function, code));
    if (code != CUDA_ERROR_INVALID_VALUE) throw VendorError(driver.failed(function, code));
    // Of memory that it has allocated pinned itself the driver says this, not "already registered".
    auto call = driver.failed(function, code, advice(ptr, size, flags));
    if (is_pinned(ptr) || is_pinned(ptr + (size - 1))) throw VendorAlreadyPinned(std::move(call));
    throw VendorError(std::move(call));
  }

  /// All at once, so that they are of one allocation. What a pointer has not is 0 and no error.
  template <std::size_t count>
  std::array<std::uint64_t, count> attributes(Address ptr, std::array<int, count>& asked) {
    std::array<std::uint64_t, count> values{};  // zeroed: some fill only their first bytes
    std::array<void*, count> places;
    for (std::size_t i = 0; i < count; ++i) places[i] = &values[i];
    Driver const& driver = Driver::get();
    driver.check("cuPointerGetAttributes", driver.cuPointerGetAttributes(count, asked.data(), places.data(), ptr));
    return values;
  }

  /// The device's primary context, which the CUDA runtime and so every library uses. Retained at its first use and
  /// never released, because what was locked in it may outlive any owner of ours.
  void* context() {
    if (void* const known = context_.load()) return known;
    void *made = nullptr, *none = nullptr;
    driver_.check("cuDevicePrimaryCtxRetain", driver_.cuDevicePrimaryCtxRetain(&made, device_));
    if (!context_.compare_exchange_strong(none, made)) driver_.cuDevicePrimaryCtxRelease_v2(device_);
    return made;
  }

  Driver& driver_;
  int device_ = 0, registers_read_only_ = 0;
  std::atomic<void*> context_ = nullptr;
};

}  // namespace

std::unique_ptr<VendorDevice> make_cuda(unsigned index) { return std::make_unique<CudaDevice>(index); }

}  // namespace pinning
