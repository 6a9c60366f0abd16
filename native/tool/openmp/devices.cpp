// SPDX-License-Identifier: Apache-2.0
#include "devices.hpp"

#include <optional>
#include <string_view>

#include "../output.hpp"

namespace pinning::tool::openmp {

namespace {

std::optional<Vendor> vendor_of(std::string_view type) {
  for (char const* const nvidia : {"sm_", "nvptx"}) {
    if (type.starts_with(nvidia)) return Vendor::cuda;
  }
  for (char const* const amd : {"gfx", "amdgcn"}) {
    if (type.starts_with(amd)) return Vendor::hsa;
  }
  for (char const* const host : {"generic", "x86_64", "aarch64", "powerpc64", "ppc64", "s390x", "riscv64"}) {
    if (type.starts_with(host)) return Vendor::host;
  }
  return std::nullopt;
}

}  // namespace

pinning_map* Device::map() {
  std::call_once(opened_, [&] {
    pinning_map* map = nullptr;
    if (pinning_map_open(&map, name_.c_str()) != PINNING_OK) {
      return say(std::string(pinning_last_error()) + "; nothing is locked for " + name_);
    }
    map_ = map;
  });
  return map_;
}

void Devices::add(int number, char const* type) {
  std::string const processor(type != nullptr ? type : "");
  auto const vendor = vendor_of(processor);
  if (!vendor) say("an OpenMP device of type \"" + processor + "\" is unknown; nothing is locked for it");
  if (!is_listed(number)) return;
  std::lock_guard const guard(mutex_);
  added_[number] = true;
  if (devices_[number] != nullptr || !vendor) return;
  // The CPU's devices are all one host.
  unsigned const index = *vendor == Vendor::host ? 0 : next_[static_cast<int>(*vendor)]++;
  char const* const names[vendors] = {"host:", "cuda:", "hsa:"};
  devices_[number] = new Device(*vendor, names[static_cast<int>(*vendor)] + std::to_string(index));
}

}  // namespace pinning::tool::openmp
