// SPDX-License-Identifier: Apache-2.0
// What a runtime has mapped to the devices of a vendor, and how often each buffer was moved. Not thread safe.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "range.hpp"

namespace pinning::omp {

class Mappings {
 public:
  /// `device_ptr` is 0 where the runtime says so before it has one; then the first transfer tells. Returns what was
  /// mapped there before, and whose end was not reported.
  std::vector<Range> add(int device, Range const& host, Address device_ptr);
  /// The host's range that was mapped there, or nothing.
  std::optional<Range> remove(int device, Address device_ptr);
  std::optional<Range> remove_host(int device, Address host);
  /// The mapped range that this transfer lies in. One whose two addresses do not belong together, such as that of a
  /// pointer in a structure, lies in none.
  std::optional<Range> find(int device, Range const& moved, Address device_ptr);
  /// Mappings whose device's address never came, in memory that is freed, are forgotten, and returned.
  std::vector<Range> freed(Range const& range);
  /// How many mappings share bytes with the range.
  std::size_t count(Range const& range) const;

  /// Counts a transfer of this buffer. How often it was moved by now; 0 while it is not yet time to try again.
  std::size_t count_transfer(Range const& buffer);
  /// It could not be locked: the next try comes when it was moved twice as often.
  void refused(Range const& buffer);

 private:
  struct Mapped {
    Address end, device_ptr;
  };
  /// Those of one device, which do not overlap.
  struct Device {
    std::map<Address, Mapped> by_host;
    std::map<Address, Address> hosts;  // by the device's address, where that is known
  };
  using Place = std::map<Address, Mapped>::iterator;
  struct Count {
    std::size_t size = 0, moved = 0, try_again = 0;
  };

  template <class Map>
  static auto first_meeting(Map& by_host, Range const& range);
  static Range erase(Device& device, Place const& mapped);

  std::map<int, Device> devices_;
  std::map<Address, Count> counts_;
};

}  // namespace pinning::omp
