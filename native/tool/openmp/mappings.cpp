// SPDX-License-Identifier: Apache-2.0
#include "mappings.hpp"

#include <algorithm>
#include <utility>

namespace pinning::tool::openmp {

namespace {

constexpr std::size_t most_counts = 1 << 16;
constexpr unsigned most_doublings = 30;

}  // namespace

/// The first mapping that ends behind the start of the range.
Mappings::Place Mappings::first_meeting(Device& device, Range const& range) {
  auto const next = device.by_host.upper_bound(range.start);
  return next != device.by_host.begin() && std::prev(next)->second.host.end > range.start ? std::prev(next) : next;
}

Mapping Mappings::erase(Device& device, Place const& mapped) {
  Mapping const mapping = std::move(mapped->second);
  if (auto const entry = device.hosts.find(mapping.device_ptr);
      entry != device.hosts.end() && entry->second == mapping.host.start) {
    device.hosts.erase(entry);
  }
  device.by_host.erase(mapped);
  return mapping;
}

std::vector<Mapping> Mappings::add(int number, Range const& host, Address device_ptr) {
  Device& device = devices_[number];
  std::vector<Mapping> replaced;
  for (auto each = first_meeting(device, host); each != device.by_host.end() && each->first < host.end;) {
    replaced.push_back(erase(device, each++));
  }
  if (device_ptr != 0) {
    if (auto const other = device.hosts.find(device_ptr); other != device.hosts.end()) {
      replaced.push_back(erase(device, device.by_host.find(other->second)));
    }
    device.hosts[device_ptr] = host.start;
  }
  device.by_host[host.start] = {host, device_ptr};
  return replaced;
}

std::vector<Mapping> Mappings::remove(int number, Address device_ptr) {
  Device& device = devices_[number];
  auto const entry = device.hosts.find(device_ptr);
  if (entry == device.hosts.end()) return {};
  return {erase(device, device.by_host.find(entry->second))};
}

std::vector<Mapping> Mappings::remove_host(int number, Address host) {
  Device& device = devices_[number];
  auto const entry = device.by_host.find(host);
  if (entry == device.by_host.end()) return {};
  return {erase(device, entry)};
}

Mapping* Mappings::find(int number, Range const& moved, Address device_ptr) {
  auto const of_this = devices_.find(number);
  if (of_this == devices_.end()) return nullptr;
  Device& device = of_this->second;
  auto const place = first_meeting(device, moved);
  if (place == device.by_host.end() || !place->second.host.holds(moved)) return nullptr;
  Mapping& mapping = place->second;
  Address const expected = device_ptr - (moved.start - mapping.host.start);
  if (mapping.device_ptr == 0) {
    if (!device.hosts.try_emplace(expected, mapping.host.start).second) return nullptr;  // of another mapping
    mapping.device_ptr = expected;
  }
  return mapping.device_ptr == expected ? &mapping : nullptr;
}

std::vector<Mapping> Mappings::freed(Range const& range) {
  std::vector<Mapping> gone;
  for (auto& [number, device] : devices_) {
    for (auto each = first_meeting(device, range); each != device.by_host.end() && each->first < range.end;) {
      if (each->second.device_ptr != 0) ++each;
      else gone.push_back(erase(device, each++));
    }
  }
  return gone;
}

/// Whether `each` is true for one of the mappings that meet a lock; it ends the search.
template <class Each>
bool Mappings::any_of_lock(Range const& lock, Each&& each) {
  for (auto& [number, device] : devices_) {
    for (auto next = first_meeting(device, lock); next != device.by_host.end() && next->first < lock.end; ++next) {
      if (each(next->second)) return true;
    }
  }
  return false;
}

void Mappings::take_holds(Range const& lock, std::vector<Hold>& holds) {
  any_of_lock(lock, [&](Mapping& mapping) {
    if (mapping.use.hold && mapping.lock == lock) {
      holds.push_back(*mapping.use.hold);
      mapping.use = {};
    }
    return false;
  });
}

bool Mappings::hand_on(Mapping const& ended) {
  return any_of_lock(ended.lock, [&](Mapping& mapping) {
    if (mapping.use.hold || !ended.lock.holds(mapping.host)) return false;
    mapping.use = ended.use;
    mapping.lock = ended.lock;
    return true;
  });
}

std::size_t Mappings::count_transfer(Range const& buffer) {
  if (counts_.size() >= most_counts) counts_.clear();
  Count& count = counts_[buffer.start];
  if (count.size != buffer.size()) count = {buffer.size()};
  count.moved++;
  return count.moved < count.try_again ? 0 : count.moved;
}

void Mappings::refused(Range const& buffer) {
  if (auto const entry = counts_.find(buffer.start); entry != counts_.end()) {
    entry->second.try_again = 2 * entry->second.moved;
  }
}

void Mappings::crossed(Range const& buffer) {
  auto const entry = counts_.find(buffer.start);
  if (entry == counts_.end() || entry->second.size != buffer.size()) return;
  Count& count = entry->second;
  count.try_again = count.moved + (std::size_t{1} << std::min(count.crossed++, most_doublings));
}

}  // namespace pinning::tool::openmp
