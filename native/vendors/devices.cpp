// SPDX-License-Identifier: Apache-2.0
// Which device has which name. No lock: the list only grows.
#include "devices.hpp"

#include <charconv>
#include <iterator>

#include "../base/process.hpp"

namespace pinning {

namespace {

constexpr struct {
  char const* name;
  std::unique_ptr<VendorDevice> (*make)(unsigned index);
} kinds[] = {{"cuda", make_cuda}, {"hip", make_hip}, {"hsa", make_hsa}, {"ur", make_ur}, {"host", make_host}};

struct Named {
  std::string name;
  std::unique_ptr<VendorDevice> device;
};

/// Never destroyed: programs lock until the end.
GrowingList<Named> all_devices;

void begin_anew() {
  all_devices.each([](Named& each) { each.device->after_fork(); });
}

/// The number behind the colon of a full name.
unsigned index_of(std::string const& name) {
  unsigned index = 0;
  char const* const first = name.c_str() + name.find(':') + 1;
  char const* const end = name.c_str() + name.size();
  auto const [stopped, error] = std::from_chars(first, end, index);
  if (error != std::errc() || stopped != end || (*first == '0' && end - first > 1)) {
    throw InvalidArgument("\"" + name + "\" names no device; a name is a vendor and a number, such as \"cuda:0\"");
  }
  return index;
}

/// "cuda, hip and host"
std::string known() {
  std::string all;
  for (auto const& kind : kinds) {
    bool const last = &kind == std::end(kinds) - 1;
    all += (all.empty() ? "" : last ? " and " : ", ") + std::string(kind.name);
  }
  return all;
}

std::unique_ptr<VendorDevice> make(std::string const& name) {
  for (auto const& [kind, make_one] : kinds) {
    if (name.starts_with(std::string(kind) + ":")) return make_one(index_of(name));
  }
  throw InvalidArgument("\"" + name + "\" names no native device; there are " + known());
}

}  // namespace

std::string full_name(char const* device) {
  if (device == nullptr) throw InvalidArgument("the name of the device is null; give one such as \"cuda:0\"");
  std::string name(device);
  if (name.find(':') == std::string::npos) name += ":0";
  index_of(name);
  return name;
}

VendorDevice& vendor_device(std::string const& name) {
  auto const has_it = [&](Named const& each) { return each.name == name; };
  if (Named* const known = all_devices.find(has_it)) return *known->device;
  at_fork(Subsystem::devices, begin_anew);
  return *all_devices.add({name, make(name)}, has_it).device;
}

}  // namespace pinning
