// SPDX-License-Identifier: Apache-2.0
// Shared by the two runtimes for AMD GPUs, HIP and HSA: ROCm's folder, and the kernel driver.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <string>

namespace pinning {

/// The path of a library in ROCm's own folder, which the dynamic linker may not search.
inline std::string in_rocm(std::string const& library) {
  char const* const path = std::getenv("ROCM_PATH");
  return std::string(path != nullptr && *path != '\0' ? path : "/opt/rocm") + "/lib/" + library;
}

/// Why no runtime can open the kernel driver, and the remedy; empty if it can be opened.
inline std::string kfd_problem(std::string const& kfd = "/dev/kfd") {
  if (access(kfd.c_str(), F_OK) != 0) {
    return "there is no " + kfd +
           ": load the kernel module amdgpu (`sudo modprobe amdgpu`); a container needs --device=" + kfd +
           " --device=/dev/dri";
  }
  if (access(kfd.c_str(), R_OK | W_OK) != 0) {
    return "this user may not open " + kfd + ": `sudo usermod -a -G render,video $USER`";
  }
  return {};
}

}  // namespace pinning
