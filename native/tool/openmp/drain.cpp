// SPDX-License-Identifier: Apache-2.0
#include "drain.hpp"

#include <dlfcn.h>

namespace pinning::tool::openmp {

namespace {

class Cuda {
 public:
  Cuda() {
    void* const library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);  // loaded by the code that locks
    if (library == nullptr) return;
    complete_ = get(library, "cuDeviceGetCount", count_) && get(library, "cuDeviceGet", device_) &&
                get(library, "cuDevicePrimaryCtxGetState", state_) && get(library, "cuDevicePrimaryCtxRetain", retain_) &&
                get(library, "cuDevicePrimaryCtxRelease_v2", release_) && get(library, "cuCtxPushCurrent_v2", push_) &&
                get(library, "cuCtxPopCurrent_v2", pop_) && get(library, "cuCtxSynchronize", synchronize_);
  }

  /// Wait for all devices, because each may copy memory that another has locked. An error means that the device was
  /// lost before, which the program learns from its own calls.
  void drain() const noexcept {
    int count = 0;
    if (!complete_ || count_(&count) != 0) return;
    for (int index = 0; index < count; ++index) {
      int device, active = 0;
      unsigned flags;
      void* context;
      if (device_(&device, index) != 0 || state_(device, &flags, &active) != 0 || active == 0) continue;
      if (retain_(&context, device) != 0) continue;
      if (push_(context) == 0) {
        synchronize_();
        pop_(&context);
      }
      release_(device);
    }
  }

 private:
  template <class Function>
  static bool get(void* library, char const* name, Function*& function) {
    function = reinterpret_cast<Function*>(dlsym(library, name));
    return function != nullptr;
  }

  bool complete_ = false;
  int (*count_)(int*) = nullptr;
  int (*device_)(int*, int) = nullptr;
  int (*state_)(int, unsigned*, int*) = nullptr;
  int (*retain_)(void**, int) = nullptr;
  int (*release_)(int) = nullptr;
  int (*push_)(void*) = nullptr;
  int (*pop_)(void**) = nullptr;
  int (*synchronize_)() = nullptr;
};

Cuda const& cuda() {
  static Cuda const found;
  return found;
}

}  // namespace

void prepare_to_drain(Vendor vendor) {
  if (vendor == Vendor::cuda) cuda();
}

void drain(Vendor vendor) noexcept {
  if (vendor == Vendor::cuda) cuda().drain();
}

}  // namespace pinning::tool::openmp
