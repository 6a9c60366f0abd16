// SPDX-License-Identifier: Apache-2.0
// What a runtime has mapped to the devices of a vendor, and how often each buffer was moved. Not thread-safe.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "../range.hpp"

namespace pinning::tool::openmp {

class Mappings {
 public:
  /// Add a mapping. `device_ptr` is 0 if the runtime does not know it yet; the first transfer then provides it. Returns
  /// earlier mappings there, whose end was not reported.
  std::vector<Range> add(int device, Range const& host, Address device_ptr);
  /// Remove a mapping and return its host range, if there is one.
  std::optional<Range> remove(int device, Address device_ptr);
  std::optional<Range> remove_host(int device, Address host);
  /// The mapped range that contains this transfer. None if the two addresses do not belong together, such as those of a
  /// pointer in a structure.
  std::optional<Range> find(int device, Range const& moved, Address device_ptr);
  /// Remove and return the mappings in freed memory whose device address is still unknown.
  std::vector<Range> freed(Range const& range);
  /// How many mappings share bytes with the range.
  std::size_t count(Range const& range) const;

  /// Count a transfer of this buffer. Returns how often it was moved by now; 0 while it is too early to try again.
  std::size_t count_transfer(Range const& buffer);
  /// The buffer could not be locked: the next attempt is when it was moved twice as often.
  void refused(Range const& buffer);

 private:
  struct Mapped {
    Address end, device_ptr;
  };
  /// The mappings of one device, which do not overlap.
  struct Device {
    std::map<Address, Mapped> by_host;
    std::map<Address, Address> hosts;  // by device address, if known
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

}  // namespace pinning::tool::openmp
