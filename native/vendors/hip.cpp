// SPDX-License-Identifier: Apache-2.0
// AMD GPUs, by the HIP runtime. The rules are those of Python's plugin pinning_hip.
#include <cstdlib>

#include "hip_abi.hpp"
#include "library.hpp"
#include "devices.hpp"

namespace pinning {

namespace {

#define PINNING_ENUMERATOR(name, value) name = value,
enum { PINNING_HIP_CONSTANTS(PINNING_ENUMERATOR) };
#undef PINNING_ENUMERATOR

std::string rocm() {
  char const* const path = std::getenv("ROCM_PATH");
  return path != nullptr && *path != '\0' ? path : "/opt/rocm";
}

class Runtime : public hip::Functions {
 public:
  Runtime()
      : library_({"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5",
                  rocm() + "/lib/libamdhip64.so"},
                 "install the HIP runtime of ROCm, and put its folder on LD_LIBRARY_PATH or say in ROCM_PATH where "
                 "ROCm is") {
#define PINNING_GET(name, ...) library_.get(#name, this->name);
    PINNING_HIP_FUNCTIONS(PINNING_GET)
#undef PINNING_GET
    int code = hipInit(0);
    if (code == 0) code = hipGetDeviceCount(&count);
    if (code != 0) {
      throw Unavailable("the HIP runtime finds no AMD GPU: " + failed("hipGetDeviceCount", code).text() +
                        "; see whether there is a /dev/kfd that this user may open, and compare `rocminfo` with the "
                        "variables HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES");
    }
  }

  /// Loaded and started once; again after each failure.
  static Runtime& get() {
    static Runtime& runtime = *new Runtime;  // not destroyed: programs lock until the end
    runtime.started_.check();
    return runtime;
  }

  void check(char const* function, int code) const {
    if (code != 0) throw VendorError(failed(function, code));
  }

  VendorCall failed(char const* function, int code, std::string advice = "") const {
    hipGetLastError();  // each thread's last error stays until someone asks for it, and others ask after their kernels
    char const* const name = hipGetErrorName(code);
    return {function, code, name != nullptr ? name : "unknown", std::move(advice)};
  }

  int count = 0;

 private:
  Library library_;
  Started started_{"HIP"};
};

/// The device current in this thread, and afterwards whichever was before.
class Current {
 public:
  Current(Runtime const& runtime, int index) : runtime_(runtime), index_(index) {
    runtime_.check("hipGetDevice", runtime_.hipGetDevice(&before_));
    if (before_ != index_) runtime_.check("hipSetDevice", runtime_.hipSetDevice(index_));
  }
  ~Current() {  // that it fails must not undo what was done here
    if (before_ != index_ && runtime_.hipSetDevice(before_) != 0) runtime_.hipGetLastError();
  }
  Current(Current const&) = delete;

 private:
  Runtime const& runtime_;
  int const index_;
  int before_ = 0;
};

constexpr char advice[] =
    "is all of it mapped, and writable? HIP has no read-only registration: map a file private and writable";

class HipDevice : public LockingDevice {
 public:
  explicit HipDevice(unsigned index)
      : LockingDevice("hip:" + std::to_string(index)), index_(static_cast<int>(index)) {
    int const count = Runtime::get().count;
    if (index >= static_cast<unsigned>(count)) {
      throw Unavailable("there is no hip:" + std::to_string(index) + ": this process sees " + std::to_string(count) +
                        ", from hip:0 on");
    }
  }

  /// Older releases of the runtime take a range that is registered already and then lose track of it, so both its ends
  /// are looked up first.
  Address lock(Address ptr, std::uint64_t size, Wish wish) override {
    Runtime const& runtime = Runtime::get();
    Current const current(runtime, index_);
    char const* const function = "hipHostRegister";
    if (look_up(runtime, ptr) || look_up(runtime, ptr + (size - 1))) {
      throw VendorAlreadyPinned(runtime.failed(function, hipErrorHostMemoryAlreadyRegistered));
    }
    unsigned const flags = hipHostRegisterPortable | hipHostRegisterMapped |
                           (wish.grain == Grain::coarse ? hipExtHostRegisterCoarseGrained : 0);
    auto* const host = reinterpret_cast<void*>(ptr);
    if (int const code = runtime.hipHostRegister(host, size, flags); code != 0) {
      auto call = runtime.failed(function, code, code == hipErrorInvalidValue ? advice : "");
      if (code == hipErrorHostMemoryAlreadyRegistered) throw VendorAlreadyPinned(std::move(call));
      throw VendorError(std::move(call));
    }
    void* device_ptr = nullptr;
    if (int const code = runtime.hipHostGetDevicePointer(&device_ptr, host, 0); code != 0) {
      auto call = runtime.failed("hipHostGetDevicePointer", code);
      if (runtime.hipHostUnregister(host) != 0) runtime.hipGetLastError();
      throw VendorError(std::move(call));
    }
    return reinterpret_cast<Address>(device_ptr);
  }

  void unlock(Address ptr) override {
    Runtime const& runtime = Runtime::get();
    Current const current(runtime, index_);
    runtime.check("hipHostUnregister", runtime.hipHostUnregister(reinterpret_cast<void*>(ptr)));
  }

  std::optional<Pinned> is_pinned(Address ptr) override {
    Runtime const& runtime = Runtime::get();
    Current const current(runtime, index_);
    return look_up(runtime, ptr);
  }

  Grains grains() const noexcept override { return {.fine = true, .coarse = true}; }

 private:
  /// With the device current. Memory that was locked through HSA alone, below HIP, the runtime does not know.
  static std::optional<Pinned> look_up(Runtime const& runtime, Address ptr) {
    Address host, managed, base;
    if (!attribute(runtime, HIP_POINTER_ATTRIBUTE_HOST_POINTER, ptr, host) || host != ptr) return std::nullopt;
    if (!attribute(runtime, HIP_POINTER_ATTRIBUTE_IS_MANAGED, ptr, managed) || managed != 0) return std::nullopt;
    if (!attribute(runtime, HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR, ptr, base)) return std::nullopt;
    // Each tells but one truth: of registered memory this gives no base, and RANGE_SIZE has only 32 bits.
    void *ignored, *device_ptr;
    std::size_t size;
    auto* const address = reinterpret_cast<void*>(ptr);
    if (!knows(runtime, "hipMemGetAddressRange", runtime.hipMemGetAddressRange(&ignored, &size, address))) {
      return std::nullopt;
    }
    int const code = runtime.hipHostGetDevicePointer(&device_ptr, reinterpret_cast<void*>(base), 0);
    if (!knows(runtime, "hipHostGetDevicePointer", code)) return std::nullopt;
    return Pinned{base, size, reinterpret_cast<Address>(device_ptr)};
  }

  static bool attribute(Runtime const& runtime, int name, Address ptr, Address& value) {
    value = 0;  // a bool fills only its first byte
    int const code = runtime.hipPointerGetAttribute(&value, name, reinterpret_cast<void*>(ptr));
    return knows(runtime, "hipPointerGetAttribute", code);
  }

  /// False for what releases say of a pointer that is not theirs.
  static bool knows(Runtime const& runtime, char const* function, int code) {
    if (code != hipErrorInvalidValue && code != hipErrorInvalidDevicePointer && code != hipErrorNotFound) {
      runtime.check(function, code);
      return true;
    }
    runtime.hipGetLastError();
    return false;
  }

  int const index_;
};

}  // namespace

std::unique_ptr<VendorDevice> make_hip(unsigned index) { return std::make_unique<HipDevice>(index); }

}  // namespace pinning
