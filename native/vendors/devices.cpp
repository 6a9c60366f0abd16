// SPDX-License-Identifier: Apache-2.0
// Devices by name. No lock: the list only grows.
#include "devices.hpp"

#include <charconv>
#include <iterator>
#include <pinning/process.hpp>
#include <string_view>

#include "../base/alone.hpp"

namespace pinning {

namespace {

constexpr Vendor const* vendors[] = {&cuda_vendor, &hip_vendor, &hsa_vendor, &ur_vendor, &host_vendor};

struct Named {
  std::string name;
  std::unique_ptr<VendorDevice> device;
};

/// Never destroyed: programs may lock memory until they exit.
GrowingList<Named> all_devices;

void restart() {
  all_devices.each([](Named& each) { each.device->after_fork(); });
}

/// The number after the colon of a full name.
unsigned index_of(std::string const& name) {
  unsigned index = 0;
  char const* const first = name.c_str() + name.find(':') + 1;
  char const* const end = name.c_str() + name.size();
  auto const [stopped, error] = std::from_chars(first, end, index);
  if (error != std::errc() || stopped != end || (*first == '0' && end - first > 1)) {
    throw InvalidArgument("\"" + name + "\" is not a device name; a name is a vendor and a number, such as \"cuda:0\"");
  }
  return index;
}

/// "cuda, hip and host"
std::string vendor_names() {
  std::string all;
  for (Vendor const* const& vendor : vendors) {
    bool const last = &vendor == std::end(vendors) - 1;
    all += (all.empty() ? "" : last ? " and " : ", ") + std::string(vendor->name);
  }
  return all;
}

/// The vendor of a device name, or of a vendor name.
Vendor const& vendor_of(std::string const& name) {
  std::string_view const first = std::string_view(name).substr(0, name.find(':'));
  for (Vendor const* const vendor : vendors) {
    if (first == vendor->name) return *vendor;
  }
  throw InvalidArgument("\"" + name + "\" names no native device; there are " + vendor_names());
}

std::unique_ptr<VendorDevice> make(std::string const& name) {
  Vendor const& vendor = vendor_of(name);
  unsigned const index = index_of(name), count = vendor.count();
  if (index < count) return vendor.make(index);
  throw Unavailable("there is no " + name + ": this process sees " + std::to_string(count) + ", from " + vendor.name +
                    ":0 on");
}

}  // namespace

std::string full_name(char const* device) {
  if (device == nullptr) throw InvalidArgument("the name of the device is null; give one such as \"cuda:0\"");
  std::string name(device);
  if (name.empty()) throw InvalidArgument("the name of the device is empty; give one such as \"cuda:0\"");
  if (name.find(':') == std::string::npos) name += ":0";
  index_of(name);
  return name;
}

VendorDevice& vendor_device(std::string const& name) {
  auto const has_it = [&](Named const& each) { return each.name == name; };
  if (Named* const known = all_devices.find(has_it)) return *known->device;
  check_alone();
  at_fork(Subsystem::devices, restart);
  return *all_devices.add({name, make(name)}, has_it).device;
}

unsigned device_count(std::string const& vendor) { return vendor_of(vendor).count(); }

VendorLibrary vendor_library(std::string const& vendor) { return vendor_of(vendor).library(); }

}  // namespace pinning
