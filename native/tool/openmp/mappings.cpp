// SPDX-License-Identifier: Apache-2.0
#include "mappings.hpp"

namespace pinning::tool::openmp {

namespace {

constexpr std::size_t most_counts = 1 << 16;

}  // namespace

/// The first mapping that ends behind the start of the range.
template <class Map>
auto Mappings::first_meeting(Map& by_host, Range const& range) {
  auto const next = by_host.upper_bound(range.start);
  return next != by_host.begin() && std::prev(next)->second.end > range.start ? std::prev(next) : next;
}

Range Mappings::erase(Device& device, Place const& mapped) {
  Range const host{mapped->first, mapped->second.end};
  if (auto const entry = device.hosts.find(mapped->second.device_ptr);
      entry != device.hosts.end() && entry->second == host.start) {
    device.hosts.erase(entry);
  }
  device.by_host.erase(mapped);
  return host;
}

std::vector<Range> Mappings::add(int number, Range const& host, Address device_ptr) {
  Device& device = devices_[number];
  std::vector<Range> replaced;
  for (auto each = first_meeting(device.by_host, host); each != device.by_host.end() && each->first < host.end;) {
    replaced.push_back(erase(device, each++));
  }
  if (device_ptr != 0) {
    if (auto const other = device.hosts.find(device_ptr); other != device.hosts.end()) {
      replaced.push_back(erase(device, device.by_host.find(other->second)));
    }
    device.hosts[device_ptr] = host.start;
  }
  device.by_host[host.start] = {host.end, device_ptr};
  return replaced;
}

std::optional<Range> Mappings::remove(int number, Address device_ptr) {
  Device& device = devices_[number];
  auto const entry = device.hosts.find(device_ptr);
  if (entry == device.hosts.end()) return std::nullopt;
  return erase(device, device.by_host.find(entry->second));
}

std::optional<Range> Mappings::remove_host(int number, Address host) {
  Device& device = devices_[number];
  auto const entry = device.by_host.find(host);
  if (entry == device.by_host.end()) return std::nullopt;
  return erase(device, entry);
}

std::optional<Range> Mappings::find(int number, Range const& moved, Address device_ptr) {
  auto const of_this = devices_.find(number);
  if (of_this == devices_.end()) return std::nullopt;
  Device& device = of_this->second;
  auto const mapping = first_meeting(device.by_host, moved);
  if (mapping == device.by_host.end()) return std::nullopt;
  Range const host{mapping->first, mapping->second.end};
  if (!host.holds(moved)) return std::nullopt;
  Address const expected = device_ptr - (moved.start - host.start);
  if (mapping->second.device_ptr == 0) {
    if (!device.hosts.try_emplace(expected, host.start).second) return std::nullopt;  // of another mapping
    mapping->second.device_ptr = expected;
  }
  return mapping->second.device_ptr == expected ? std::optional(host) : std::nullopt;
}

std::vector<Range> Mappings::freed(Range const& range) {
  std::vector<Range> gone;
  for (auto& [number, device] : devices_) {
    for (auto each = first_meeting(device.by_host, range); each != device.by_host.end() && each->first < range.end;) {
      if (each->second.device_ptr != 0) ++each;
      else gone.push_back(erase(device, each++));
    }
  }
  return gone;
}

std::size_t Mappings::count(Range const& range) const {
  std::size_t sum = 0;
  for (auto const& [number, device] : devices_) {
    for (auto each = first_meeting(device.by_host, range); each != device.by_host.end() && each->first < range.end;
         ++each) {
      sum++;
    }
  }
  return sum;
}

std::size_t Mappings::count_transfer(Range const& buffer) {
  if (counts_.size() >= most_counts) counts_.clear();
  Count& count = counts_[buffer.start];
  if (count.size != buffer.size()) count = {buffer.size(), 0, 0};
  count.moved++;
  return count.moved < count.try_again ? 0 : count.moved;
}

void Mappings::refused(Range const& buffer) {
  if (auto const entry = counts_.find(buffer.start); entry != counts_.end()) {
    entry->second.try_again = 2 * entry->second.moved;
  }
}

}  // namespace pinning::tool::openmp
