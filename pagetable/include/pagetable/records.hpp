// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "region.hpp"
#include "reservation.hpp"

namespace pagetable {

/// The `Value` of a table without values.
struct Nothing {};

/// The bounds and the user's value of every region, by id, in memory that never moves and is never returned while the
/// table exists. This is the whole reclamation scheme: a reader may hold an id for any time, because it always refers
/// to a record, and `version` shows whether that record still describes the same region.
///
/// `version` is odd while the record's region is in the table. It has 64 bits and so never wraps. One writer at a time;
/// readers take no lock and never retry: if a record changes under a reader, its region was removed in that instant, so
/// "absent" is correct.
template <class Value>
class Records {
 public:
  static constexpr Id none = ~Id{0};

  Records() : memory_(std::size_t{1} << 32, std::size_t{1} << 20), records_(reinterpret_cast<Record*>(memory_.base())) {
    if (!memory_) throw NoAddresses();
  }

  /// Returns all memory. The records must not be used afterwards.
  void abandon() noexcept { memory_.release(); }

  // ---- readers ----

  /// Whether the region of `id` is live and holds `address`; stores its bounds. `look(value)` runs between the two
  /// loads of the version, so what it copies belongs to that region; it must read atomics with acquire order.
  template <class Look>
  bool holds(Id id, Address address, Address& start, std::uint64_t& size, Look&& look) const noexcept {
    Record const& record = records_[id];
    std::uint64_t const version = record.version.load(std::memory_order_acquire);
    start = record.start.load(std::memory_order_acquire);
    size = record.size.load(std::memory_order_acquire);
    look(record.value);
    if (version % 2 == 0 || record.version.load(std::memory_order_acquire) != version) [[unlikely]] return false;
    return address - start < size;
  }

  // ---- the writer ----

  /// The bounds of a record, live or not, that has been acquired.
  Region bounds(Id id) const noexcept {
    Record const& record = records_[id];
    return {record.start.load(std::memory_order_relaxed), record.size.load(std::memory_order_relaxed), id};
  }
  Value& value(Id id) noexcept { return records_[id].value; }

  /// Allocates a record with these bounds, not yet live. Throws std::bad_alloc.
  Id acquire(Address start, std::uint64_t size) {
    Id id = free_;
    if (id != none) {
      free_ = static_cast<Id>(records_[id].size.load(std::memory_order_relaxed));
    } else {
      memory_.commit(std::size_t{used_} * sizeof(Record), sizeof(Record));
      id = used_++;
    }
    // Release: a reader that sees a new bound also sees the even version stored before it.
    records_[id].start.store(start, std::memory_order_release);
    records_[id].size.store(size, std::memory_order_release);
    return id;
  }
  /// Makes a record live or dead: a region that is not one whole cell enters or leaves the table in that instant.
  void flip(Id id) noexcept {
    auto& version = records_[id].version;
    version.store(version.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
  void release(Id id) noexcept {
    records_[id].size.store(free_, std::memory_order_release);  // dead records' sizes link the free list
    free_ = id;
  }

 private:
  struct alignas(sizeof(Value) > 8 ? 64 : 32) Record {
    std::atomic<std::uint64_t> version;
    std::atomic<Address> start;
    std::atomic<std::uint64_t> size;
    [[no_unique_address]] Value value;
  };
  static_assert(sizeof(Record) <= 64, "a lookup reads one cache line of the record");
  static_assert(std::is_trivially_destructible_v<Value>, "records are never destroyed, only reused");

  Reservation memory_;
  Record* records_;  // zeroed memory is a dead record
  Id used_ = 0;
  Id free_ = none;
};

}  // namespace pagetable
