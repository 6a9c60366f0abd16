// SPDX-License-Identifier: Apache-2.0
// What a runtime has mapped to the devices of a vendor, and how often each buffer was moved. Not thread-safe.
#pragma once

#include <map>
#include <optional>
#include <pinning/region.hpp>
#include <vector>

#include "../range.hpp"

namespace pinning::tool::openmp {

/// One use of a lock.
struct Use {
  std::optional<Hold> hold = {};
  bool stays = false;  // the lock, without a user, until its memory is freed
};

struct Mapping {
  Range host;
  Address device_ptr = 0;  // 0: the runtime does not know it yet; the first transfer then provides it
  Use use = {};            // of the lock around it, from the first transfer in one until the mapping ends
  Range lock = {};         // that one
};

class Mappings {
 public:
  /// Add a mapping. Returns earlier ones there, whose end was not reported.
  std::vector<Mapping> add(int device, Range const& host, Address device_ptr);
  /// Remove a mapping and return it, if there is one.
  std::vector<Mapping> remove(int device, Address device_ptr);
  std::vector<Mapping> remove_host(int device, Address host);
  /// The mapping that contains this transfer. Null if the two addresses do not belong together, such as those of a
  /// pointer in a structure.
  Mapping* find(int device, Range const& moved, Address device_ptr);
  /// Remove and return the mappings in freed memory whose device address is still unknown.
  std::vector<Mapping> freed(Range const& range);
  /// Move all holds of this lock to the end of the list.
  void take_holds(Range const& lock, std::vector<Hold>& holds);
  /// Give the hold of a mapping that has ended to another one in the same lock that has none; false if there is none.
  bool hand_on(Mapping const& ended);

  /// Count a transfer of this buffer. Returns how often it was moved by now; 0 while it is too early to try again.
  std::size_t count_transfer(Range const& buffer);
  /// The buffer could not be locked: the next attempt is when it was moved twice as often.
  void refused(Range const& buffer);
  /// Its lock was in the way of a transfer: each time, the next attempt is after twice as many transfers, the first at
  /// the next one.
  void crossed(Range const& buffer);

 private:
  /// The mappings of one device, which do not overlap.
  struct Device {
    std::map<Address, Mapping> by_host;
    std::map<Address, Address> hosts;  // by device address, if known
  };
  using Place = std::map<Address, Mapping>::iterator;
  struct Count {
    std::size_t size = 0, moved = 0, try_again = 0;
    unsigned crossed = 0;
  };

  static Place first_meeting(Device& device, Range const& range);
  static Mapping erase(Device& device, Place const& mapped);
  template <class Each>
  bool any_of_lock(Range const& lock, Each&& each);

  std::map<int, Device> devices_;
  std::map<Address, Count> counts_;
};

}  // namespace pinning::tool::openmp
