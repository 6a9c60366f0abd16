// SPDX-License-Identifier: Apache-2.0
// Which device has which name. Locks: `List::mutex` guards the list, is taken last, and is held during no call that may
// wait; over a fork too, so that the child's list is whole.
#include "devices.hpp"

#include <pthread.h>

#include <charconv>
#include <iterator>
#include <map>
#include <mutex>

#include "../map/failure.hpp"

namespace pinning {

namespace {

constexpr struct {
  char const* name;
  std::unique_ptr<VendorDevice> (*make)(unsigned index);
} kinds[] = {{"cuda", make_cuda}, {"hip", make_hip}, {"hsa", make_hsa}, {"ur", make_ur}, {"host", make_host}};

struct List {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<VendorDevice>> devices;
};

List& list();

void before_fork() { list().mutex.lock(); }

void after_fork_in_parent() { list().mutex.unlock(); }

void after_fork_in_child() {
  for (auto const& [name, device] : list().devices) device->after_fork();
  list().mutex.unlock();
}

/// Never destroyed: programs lock until the end. Nor are its devices.
List& list() {
  static List& only = []() -> List& {
    auto* const made = new List;
    if (pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) != 0) throw std::bad_alloc();
    return *made;
  }();
  return only;
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
  List& all = list();
  {
    std::lock_guard const guard(all.mutex);
    if (auto const found = all.devices.find(name); found != all.devices.end()) return *found->second;
  }
  std::unique_ptr<VendorDevice> made = make(name);  // which may start a driver
  std::lock_guard const guard(all.mutex);
  return *all.devices.try_emplace(name, std::move(made)).first->second;
}

}  // namespace pinning
