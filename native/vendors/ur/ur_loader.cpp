// SPDX-License-Identifier: Apache-2.0
#include "ur_loader.hpp"

#include <dlfcn.h>
#include <limits.h>
#include <unistd.h>

namespace pinning::ur {

Loader::Loader()
    : VendorDriver("Unified Runtime"),
      library_({"libur_loader.so.0"}, "pip install intel-cmplr-lib-ur intel-cmplr-lib-rt") {
  PINNING_UR_FUNCTIONS(PINNING_LOOK_UP)
  PINNING_UR_RECENT_FUNCTIONS(PINNING_LOOK_UP_IF_THERE)
  Function<void()> only_before_2025_3{"urGetGlobalProcAddrTable"};
  library_.get_if_there(only_before_2025_3);
  platforms_of_several_ = static_cast<bool>(only_before_2025_3);
  char folder[PATH_MAX];
  if (getcwd(folder, sizeof folder) == nullptr) {  // Intel's loader ends the process then
    throw Unavailable("libur_loader.so.0 cannot start in a working directory that no longer exists; change to another one");
  }
  if (int const code = urLoaderInit(0, nullptr); code != 0) {
    throw Unavailable("libur_loader.so.0 does not start (" + failed("urLoaderInit", code).text() +
                      "); UR_LOG_LOADER='level:info;output:stderr' makes it say why");
  }
}

Loader& Loader::get() {
  Loader& loader = Only<Loader>::get([] { return std::unique_ptr<Loader>(new Loader); });
  loader.started().check();
  return loader;
}

void Loader::refuse(VendorCall call) const {
  if (call.code == UR_RESULT_ERROR_OVERLAPPING_REGIONS) throw VendorAlreadyPinned(std::move(call));
  throw VendorError(std::move(call));
}

VendorCall Loader::failed(std::string function, int code, std::string advice) const {
  char name[128] = "";
  urPrintResult(code, name, sizeof name, nullptr);
  bool const no_memory = code == UR_RESULT_ERROR_OUT_OF_HOST_MEMORY || code == UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY ||
                         code == UR_RESULT_ERROR_OUT_OF_RESOURCES;
  return {std::move(function), code, name, std::move(advice), no_memory};
}

std::vector<void*> Loader::platforms(void* adapter) const {
  if (!platforms_of_several_) return list(urPlatformGet, adapter);
  using OfSeveral = int(void**, std::uint32_t, std::uint32_t, void**, std::uint32_t*);
  auto* const of_several = reinterpret_cast<OfSeveral*>(reinterpret_cast<void*>(urPlatformGet.call));
  return list(Function<OfSeveral>{urPlatformGet.symbol, of_several}, &adapter, 1);
}

std::string Loader::path() const {
  Dl_info info{};
  return dladdr(reinterpret_cast<void*>(urLoaderInit.call), &info) != 0 ? info.dli_fname : "";
}

}  // namespace pinning::ur
