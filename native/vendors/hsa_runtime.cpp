// SPDX-License-Identifier: Apache-2.0
#include "hsa_runtime.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>

namespace pinning::hsa {

namespace {

std::string in_rocm() {
  char const* const path = std::getenv("ROCM_PATH");
  return std::string(path != nullptr && *path != '\0' ? path : "/opt/rocm") + "/lib/libhsa-runtime64.so.1";
}

/// Called for each agent or pool; a vector that cannot grow must not throw through the runtime.
int collect(Handle found, void* all) noexcept {
  try {
    static_cast<std::vector<Handle>*>(all)->push_back(found);
    return 0;
  } catch (...) {
    return HSA_STATUS_ERROR;
  }
}

}  // namespace

Runtime::Runtime()
    : library_({"libhsa-runtime64.so.1", in_rocm()},
               "install ROCm's package hsa-rocr (Debian and Ubuntu: libhsa-runtime64-1), or say in ROCM_PATH where "
               "ROCm is") {
#define PINNING_GET(name, ...) library_.get(#name, this->name);
  PINNING_HSA_FUNCTIONS(PINNING_GET)
#undef PINNING_GET
  if (int const code = hsa_init(); code != 0) {
    throw Unavailable("the HSA runtime does not start: " + failed("hsa_init", code).text() +
                      "; see whether there is a /dev/kfd that this user may open, and whether `rocminfo` works");
  }
  find_machine();
}

Runtime& Runtime::get() {
  static Runtime& runtime = *new Runtime;  // not destroyed: programs lock until the end
  runtime.started_.check();
  return runtime;
}

void Runtime::check(char const* function, int code) const {
  if (code != 0) throw VendorError(failed(function, code));
}

/// The runtime puts the code's name before a colon and a sentence.
VendorCall Runtime::failed(char const* function, int code, std::string advice) const {
  char const* text = nullptr;
  bool const known = hsa_status_string(code, &text) == 0 && text != nullptr;
  return {function, code, known ? std::string(text, std::strcspn(text, ":")) : "unknown", std::move(advice)};
}

bool Runtime::is_gpu(Handle agent) const noexcept {
  return std::ranges::any_of(gpus, [&](Handle gpu) { return gpu.handle == agent.handle; });
}

void Runtime::find_machine() {
  std::vector<Handle> agents, pools;
  check("hsa_iterate_agents", hsa_iterate_agents(collect, &agents));
  std::optional<Handle> cpu;
  for (Handle const agent : agents) {
    std::uint32_t type = 0;
    check("hsa_agent_get_info", hsa_agent_get_info(agent, HSA_AGENT_INFO_DEVICE, &type));
    if (type == HSA_DEVICE_TYPE_GPU) gpus.push_back(agent);
    if (type == HSA_DEVICE_TYPE_CPU && !cpu) cpu = agent;
  }
  if (gpus.empty() || !cpu) {
    throw Unavailable("the HSA runtime finds no AMD GPU: compare `rocminfo` with the variable ROCR_VISIBLE_DEVICES");
  }
  check("hsa_amd_agent_iterate_memory_pools", hsa_amd_agent_iterate_memory_pools(*cpu, collect, &pools));
  std::optional<Handle> fine, fine_for_arguments;  // the latter only where there is no other
  for (Handle const pool : pools) {
    auto const info = [&](int attribute) {
      std::uint32_t value = 0;  // the largest of the types asked for; a bool fills its first byte
      check("hsa_amd_memory_pool_get_info", hsa_amd_memory_pool_get_info(pool, attribute, &value));
      return value;
    };
    if (info(HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALLOWED) == 0) continue;
    std::uint32_t const flags = info(HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS);
    if ((flags & HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_FINE_GRAINED) == 0) continue;
    auto& first = (flags & HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_KERNARG_INIT) != 0 ? fine_for_arguments : fine;
    if (!first) first = pool;
  }
  if (!fine) fine = fine_for_arguments;
  if (!fine) throw Unavailable("the HSA runtime finds no fine-grained memory of the host: see `rocminfo`");
  coherent_pool = *fine;
}

}  // namespace pinning::hsa
