// SPDX-License-Identifier: Apache-2.0
#include "lockers.hpp"

#include <charconv>
#include <cstring>

#include "failure.hpp"

namespace pinning {

namespace {

constexpr struct {
  char const* name;
  Native (*make)(unsigned index);
} kinds[] = {{"cuda", make_cuda}, {"hip", make_hip}, {"hsa", make_hsa}, {"host", make_mlock}};

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

}  // namespace

std::string full_name(char const* device) {
  if (device == nullptr) throw InvalidArgument("the name of the device is null; give one such as \"cuda:0\"");
  std::string name(device);
  if (name.find(':') == std::string::npos) name += ":0";
  index_of(name);
  return name;
}

Native make_native(std::string const& name) {
  for (auto const& [kind, make] : kinds) {
    if (name.starts_with(std::string(kind) + ":")) return make(index_of(name));
  }
  throw Unavailable("there is no native locker for \"" + name +
                    "\"; there are cuda, hip, hsa and host. What Python has a plugin for can be opened here once Python "
                    "has used it: pinning.pinned_map(\"" + name + "\")");
}

}  // namespace pinning
