// SPDX-License-Identifier: Apache-2.0
// Copies of rows.
#pragma once

#include <cstdint>
#include <memory>

#include "copy_plan.hpp"

namespace pinning {

/// `height` rows of `width` bytes, whose starts are a pitch apart.
struct Rows {
  Address dst;
  std::uint64_t dst_pitch;
  Address src;
  std::uint64_t src_pitch;
  std::uint64_t width, height;

  /// The range from the first byte of the first row to the last of the last.
  Span dst_span() const noexcept { return {dst, dst + dst_pitch * (height - 1) + width}; }
  Span src_span() const noexcept { return {src, src + src_pitch * (height - 1) + width}; }
  /// Where the host's rows are; of two ends in one kind of memory, the destination.
  Span host_span(Direction direction) const noexcept {
    return direction == Direction::to_device ? src_span() : dst_span();
  }
};

/// Throws InvalidRange if there is no row, or if rows overlap or run past the top of the address space.
PINNING_API void check_rows(Rows const& rows);

/// Rows that the vendor copies, in blocks that cross no border of a lock.
class RowsCopy final : public CopyOperation {
 public:
  /// `map` is one of `device`, and a queue of `device` copies. Throws what the vendor throws.
  PINNING_API RowsCopy(PinnedMap& map, VendorDevice& device, Rows const& rows, Direction direction,
                       CopyLimits const& limits);

  CopyPlan const& plan() const noexcept { return plan_; }
  CopyPath path() const noexcept override { return plan_.path; }
  Reason reason() const noexcept override { return plan_.reason; }
  Span written() const noexcept override { return rows_.dst_span(); }

 private:
  void submit_all(VendorQueue& queue) override;
  void submit_block(VendorQueue& queue, std::uint64_t row, std::uint64_t rows, std::uint64_t column, std::uint64_t bytes);

  Rows const rows_;
  std::uint64_t const host_pitch_;
  MemoryRanges ranges_;
  CopyPlan const plan_;  // of all bytes between the host's rows too
};

/// The rows as a batch, which reads pageable sources in its turn. Throws what the vendor throws.
PINNING_API std::unique_ptr<CopyOperation> rows_in_turn(PinnedMap& map, VendorDevice& device, VendorQueue& queue,
                                                        Rows const& rows, CopyLimits const& limits);

}  // namespace pinning
