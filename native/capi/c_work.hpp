// SPDX-License-Identifier: Apache-2.0
// The copies of the C interface: each can be planned and submitted to a queue.
#pragma once

#include <memory>
#include <pinning/batch.hpp>
#include <pinning/queue.hpp>
#include <pinning/rows.hpp>

#include "c_arguments.hpp"

/// A queue of the C interface.
struct pinning_queue {
  pinning_map& map;
  std::unique_ptr<pinning::Queue> queue;
};

struct pinning_event {
  pinning::Event event;
};

namespace pinning {

/// The device of a map, which has queues. Throws InvalidArgument if it has none.
inline VendorDevice& device_of(pinning_map& map) {
  if (map.device != nullptr) return *map.device;
  throw InvalidArgument("a map of pinning_map_create has no queues; give one of pinning_map_open");
}

/// One range.
class RangeWork {
 public:
  RangeWork(void* dst, void const* src, std::size_t size) : dst_(word(dst)), src_(word(src)), size_(size) {
    if (size == 0) throw InvalidRange("size is 0; a copy needs at least 1 byte");
  }

  Span host_span() const noexcept { return {request_.host(), request_.host() + size_}; }
  void look(PinnedMap& map, Queue& queue, Events const& after) {
    request_ = request_of(map, queue.first().device(), dst_, src_, size_);
    bool const reads_host = request_.to_device() || request_.direction == Direction::in_host;
    bool const written = reads_host && queue.may_write({src_, src_ + size_}, after);
    request_.early = reads_host && !written && !queue.first().is_adopted();
    request_.in_turn = written && queue.first().queue().reads_early();
  }
  std::unique_ptr<CopyOperation> planned(PinnedMap& map, Lane& lane) const {
    return std::make_unique<PlannedCopy>(map, lane.device(), request_, lane.queue().waits_for_values(), CopyLimits{});
  }

 private:
  Address dst_, src_;
  std::uint64_t size_;
  CopyRequest request_{};
};

/// Many ranges.
class BatchWork {
 public:
  BatchWork(void* const* dsts, void const* const* srcs, std::size_t const* sizes, std::size_t count)
      : items_{reinterpret_cast<Address const*>(dsts), reinterpret_cast<Address const*>(srcs), sizes, 1, count} {
    if (count == 0) throw InvalidRange("the batch has no items; give at least one dst and one src");
    if (dsts != nullptr && srcs != nullptr && sizes != nullptr) return;
    throw InvalidArgument("a batch needs three arrays, of dsts, srcs and sizes, and at least one of them is null");
  }

  Span host_span() const noexcept { return items_.span(); }
  void look(PinnedMap&, Queue&, Events const&) noexcept {}  // a batch always reads its sources in its turn
  std::unique_ptr<CopyOperation> planned(PinnedMap& map, Lane& lane) const {
    return std::make_unique<Batch>(map, lane.device(), lane.queue(), items_, Engine::automatic, CopyLimits{});
  }

 private:
  Items items_;
};

/// Rows.
class RowsWork {
 public:
  explicit RowsWork(Rows const& rows) : rows_(rows) { check_rows(rows); }

  Span host_span() const noexcept { return rows_.host_span(direction_); }
  void look(PinnedMap& map, Queue& queue, Events const& after) {
    MemoryRanges ranges(map, queue.first().device());
    direction_ = direction_of(ranges, rows_.dst_span(), rows_.src_span());
    in_turn_ = direction_ == Direction::to_device && queue.first().queue().reads_early() &&
               queue.may_write(rows_.src_span(), after);
  }
  std::unique_ptr<CopyOperation> planned(PinnedMap& map, Lane& lane) const {
    if (direction_ != Direction::in_host) {  // there the vendor may refuse to cross the border of a lock
      auto rows = std::make_unique<RowsCopy>(map, lane.device(), rows_, direction_, CopyLimits{});
      if (!in_turn_ || rows->is_direct()) return rows;
    }
    return rows_in_turn(map, lane.device(), lane.queue(), rows_, CopyLimits{});
  }

 private:
  Rows rows_;
  Direction direction_{};
  bool in_turn_ = false;
};

/// Plan a copy, and submit it to a queue, whose lanes are alike.
template <class Work>
Event submitted(PinnedMap& map, Queue& queue, Work work, Events const& after) {
  work.look(map, queue, after);
  Span const host = work.host_span();
  return resubmitted(map, host.start, host.end - host.start,
                     [&] { return queue.submit(work.planned(map, queue.first()), after); });
}

}  // namespace pinning
