// SPDX-License-Identifier: Apache-2.0
#include "mappings.hpp"

namespace pinning::omp {

namespace {

constexpr std::size_t most_counts = 1 << 16;

/// The entry of this device that starts at or before `address`.
template <class Map>
typename Map::iterator at_or_before(Map& map, int device, Address address) {
  auto const next = map.upper_bound({device, address});
  if (next == map.begin() || std::prev(next)->first.first != device) return map.end();
  return std::prev(next);
}

}  // namespace

void Mappings::add(int device, Range const& host, Address device_ptr) {
  if (device_ptr == 0) waiting_[{device, host.start}] = host;
  else by_device_[{device, device_ptr}] = host;
}

std::optional<Range> Mappings::remove(int device, Address device_ptr) {
  auto const found = by_device_.find({device, device_ptr});
  if (found == by_device_.end()) return std::nullopt;
  Range const host = found->second;
  by_device_.erase(found);
  return host;
}

std::optional<Range> Mappings::remove_host(int device, Address host) {
  for (auto each = by_device_.lower_bound({device, 0}); each != by_device_.end(); ++each) {
    if (each->first.first != device) break;
    if (each->second.start != host) continue;
    Range const removed = each->second;
    by_device_.erase(each);
    return removed;
  }
  waiting_.erase({device, host});
  return std::nullopt;
}

std::optional<Range> Mappings::find(int device, Range const& moved, Address device_ptr) {
  if (auto const found = at_or_before(by_device_, device, device_ptr); found != by_device_.end()) {
    Range const& host = found->second;
    if (host.holds(moved) && moved.start - host.start == device_ptr - found->first.second) return host;
  }
  if (auto const found = at_or_before(waiting_, device, moved.start); found != waiting_.end()) {
    Range const host = found->second;
    if (host.holds(moved)) {
      waiting_.erase(found);
      by_device_[{device, device_ptr - (moved.start - host.start)}] = host;
      return host;
    }
  }
  return std::nullopt;
}

void Mappings::freed(Range const& range) {
  std::erase_if(waiting_, [&](auto const& each) { return each.second.meets(range); });
}

std::size_t Mappings::count(Range const& range) const {
  std::size_t sum = 0;
  for (auto const& [key, host] : by_device_) sum += host.meets(range);
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
  if (auto const found = counts_.find(buffer.start); found != counts_.end()) {
    found->second.try_again = 2 * found->second.moved;
  }
}

}  // namespace pinning::omp
