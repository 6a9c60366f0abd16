// SPDX-License-Identifier: Apache-2.0
#include "hsa_runtime.hpp"

#include <link.h>

#include <algorithm>
#include <cstring>

#include "../amd.hpp"

namespace pinning::hsa {

namespace {

/// Called for each agent or pool. An exception must not propagate through the runtime.
int collect(Handle found, void* all) noexcept {
  try {
    static_cast<std::vector<Handle>*>(all)->push_back(found);
    return 0;
  } catch (...) {
    return HSA_STATUS_ERROR;
  }
}

std::string advice(int code) {
  auto const problem = code == HSA_STATUS_ERROR_OUT_OF_RESOURCES ? kfd_problem() : "";
  return problem.empty() ? "see whether `rocminfo` works, and `sudo dmesg | grep -i kfd`" : problem;
}

/// Called for each library of the process, with the dynamic linker's lock held.
int collect_runtimes(dl_phdr_info* info, std::size_t, void* all) noexcept {
  try {
    std::string const file = info->dlpi_name;
    if (file.find("libhsa-runtime64", file.rfind('/') + 1) != std::string::npos) {
      static_cast<std::vector<std::string>*>(all)->push_back(file);
    }
    return 0;
  } catch (...) {
    return 1;
  }
}

}  // namespace

Runtime::Runtime()
    : VendorDriver("HSA"),
      library_({"libhsa-runtime64.so.1", in_rocm("libhsa-runtime64.so.1")},
               "install ROCm's package hsa-rocr (Debian and Ubuntu: libhsa-runtime64-1), or say in ROCM_PATH where "
               "ROCm is") {
  PINNING_HSA_FUNCTIONS(PINNING_LOOK_UP)
  if (int const code = hsa_init(); code != 0) {
    throw Unavailable("the HSA runtime does not start: " + failed("hsa_init", code).text() + "; " + advice(code));
  }
  find_machine();
}

Runtime& Runtime::get() {
  Runtime& runtime = Only<Runtime>::get([] { return std::unique_ptr<Runtime>(new Runtime); });
  runtime.started().check();
  return runtime;
}

/// The runtime's text is the code's name, a colon, and a sentence.
VendorCall Runtime::failed(std::string function, int code, std::string advice) const {
  char const* text = nullptr;
  bool const known = hsa_status_string(code, &text) == 0 && text != nullptr;
  return {std::move(function), code, known ? std::string(text, std::strcspn(text, ":")) : "unknown", std::move(advice),
          code == HSA_STATUS_ERROR_OUT_OF_RESOURCES};
}

std::optional<int> Runtime::gpu(Handle agent) const noexcept {
  auto const agent_entry = std::ranges::find(gpus, agent.handle, &Handle::handle);
  return agent_entry == gpus.end() ? std::nullopt : std::optional(static_cast<int>(agent_entry - gpus.begin()));
}

std::vector<Handle> Runtime::pools(Handle agent, std::uint32_t grain) const {
  std::vector<Handle> all, found, for_arguments;
  check(hsa_amd_agent_iterate_memory_pools, agent, collect, &all);
  for (Handle const pool : all) {
    auto const info = [&](int attribute) {
      std::uint32_t value = 0;  // the largest type queried; a bool sets only the first byte
      check(hsa_amd_memory_pool_get_info, pool, attribute, &value);
      return value;
    };
    // Only pools in the global segment, which alone have flags, allow allocation.
    if (info(HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALLOWED) == 0) continue;
    std::uint32_t const flags = info(HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS);
    if ((flags & grain) == 0) continue;
    ((flags & HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_KERNARG_INIT) != 0 ? for_arguments : found).push_back(pool);
  }
  found.insert(found.end(), for_arguments.begin(), for_arguments.end());
  return found;
}

VendorLibrary Runtime::library() const {
  std::uint16_t major = 0, minor = 0;
  check(hsa_system_get_info, HSA_SYSTEM_INFO_VERSION_MAJOR, &major);
  check(hsa_system_get_info, HSA_SYSTEM_INFO_VERSION_MINOR, &minor);
  return {library_.name(), std::to_string(major) + "." + std::to_string(minor)};
}

std::vector<std::string> Runtime::problems() const {
  std::vector<std::string> files;
  dl_iterate_phdr(collect_runtimes, &files);
  if (files.size() < 2) return {};
  std::ranges::sort(files);
  std::string problem = std::to_string(files.size()) +
                        " HSA runtimes are in this process, and none knows what another has locked: ";
  for (auto const& file : files) problem += (&file == files.data() ? "" : ", ") + file;
  return {problem + "; put the folder of one before all others in LD_LIBRARY_PATH"};
}

void Runtime::find_machine() {
  std::vector<Handle> agents;
  check(hsa_iterate_agents, collect, &agents);
  bool has_cpu = false;
  for (Handle const agent : agents) {
    std::uint32_t type = 0;
    check(hsa_agent_get_info, agent, HSA_AGENT_INFO_DEVICE, &type);
    if (type == HSA_DEVICE_TYPE_GPU) gpus.push_back(agent);
    if (type == HSA_DEVICE_TYPE_CPU && !has_cpu) {
      cpu = agent;
      has_cpu = true;
    }
  }
  if (gpus.empty() || !has_cpu) {
    throw Unavailable("the HSA runtime finds no AMD GPU: compare `rocminfo` with the variable ROCR_VISIBLE_DEVICES");
  }
  auto const fine = pools(cpu, HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_FINE_GRAINED);
  if (fine.empty()) throw Unavailable("the HSA runtime finds no fine-grained memory of the host: see `rocminfo`");
  coherent_pool = fine.front();
}

}  // namespace pinning::hsa
