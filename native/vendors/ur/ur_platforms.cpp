// SPDX-License-Identifier: Apache-2.0
#include "ur_platforms.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace pinning::ur {

namespace {

std::string adapter_name(int backend) {
  switch (backend) {
    case UR_BACKEND_LEVEL_ZERO: return level_zero;
    case UR_BACKEND_OPENCL: return "OpenCL";
    case UR_BACKEND_CUDA: return "CUDA";
    case UR_BACKEND_HIP: return "HIP";
    case UR_BACKEND_NATIVE_CPU: return "Native CPU";
    case UR_BACKEND_OFFLOAD: return "Offload";
    default: return "unknown adapter " + std::to_string(backend);
  }
}

/// Intel's packages put the CPU's driver beside the loader.
std::string how_to_get_a_device(Loader const& loader) {
  char const* const named = std::getenv("OCL_ICD_FILENAMES");
  std::string const drivers = named != nullptr ? named : "";
  std::string const path = loader.path();
  std::string const cpu = path.substr(0, path.rfind('/') + 1) + "libintelocl.so";
  bool const is_there = access(cpu.c_str(), R_OK) == 0 && drivers.find("libintelocl.so") == std::string::npos;
  return "an Intel GPU needs its driver (Debian: libze1, intel-opencl-icd) and access to /dev/dri; " +
         (is_there ? "the CPU needs OCL_ICD_FILENAMES=" + cpu + " in the environment"
                   // Releases from 2026.2 on have no OpenCL adapter.
                   : "a CPU needs pip install intel-opencl-rt 'intel-cmplr-lib-ur<2026.2', and OCL_ICD_FILENAMES=" + cpu);
}

}  // namespace

Platforms::Platforms() {
  Loader const& loader = Loader::get();
  std::vector<void*> adapters;
  try {
    adapters = loader.list(loader.urAdapterGet);
  } catch (VendorError const& error) {
    throw Unavailable(std::string("libur_loader.so.0 cannot list its adapters: ") + error.what());
  }
  for (void* const adapter : adapters) {
    try {
      auto const name =
          adapter_name(loader.ask<int>(loader.urAdapterGetInfo, adapter, UR_ADAPTER_INFO_BACKEND));
      adapters_ += (adapters_.empty() ? "" : ", ") + name;
      std::vector<std::unique_ptr<Platform>> found;
      unsigned count = count_;
      for (void* const platform : loader.platforms(adapter)) {
        auto devices = loader.list(loader.urDeviceGetSelected, platform, UR_DEVICE_TYPE_ALL);
        if (devices.empty()) continue;
        found.push_back(std::make_unique<Platform>(platform, name, devices, count));
        count += static_cast<unsigned>(devices.size());
      }
      for (auto& platform : found) platforms_.push_back(std::move(platform));
      count_ = count;
    } catch (VendorError const& error) {
      problems.push_back(std::string("an adapter does not work: ") + error.what());
    }
  }
  if (adapters.empty()) {
    throw Unavailable("libur_loader.so.0 has loaded no adapter; UR_LOG_LOADER='level:info;output:stderr' shows which it "
                      "looks for, and what each lacks");
  }
  if (count_ == 0) {
    std::string what = "Unified Runtime finds no device through its adapters (" + adapters_ + "); ";
    for (auto const& problem : problems) what += problem + "; ";
    throw Unavailable(what + how_to_get_a_device(loader));
  }
}

Platforms& Platforms::get() {
  Loader::get();  // which refuses a fork
  static Platforms& only = *new Platforms;
  return only;
}

Platform& Platforms::of_device(unsigned index) const {
  auto const behind = std::ranges::find_if(platforms_, [&](auto const& platform) { return platform->first > index; });
  return **std::prev(behind);
}

VendorLibrary Platforms::library() const {
  Loader const& loader = Loader::get();
  std::uint32_t version = 0;
  loader.check(loader.urPlatformGetApiVersion, platforms_.front()->handle, &version);
  return {loader.name(),
          std::to_string(version >> 16) + "." + std::to_string(version & 0xFFFF) + " (" + adapters_ + ")"};
}

}  // namespace pinning::ur
