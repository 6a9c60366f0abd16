// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <pinning/batch.hpp>
#include <pinning/rows.hpp>
#include <string>
#include <vector>

namespace pinning {

namespace {

void check_end(char const* name, Address ptr, std::uint64_t pitch, Rows const& rows) {
  if (pitch < rows.width) {
    throw InvalidRange(std::string(name) + "_pitch is " + std::to_string(pitch) + "; rows of " + std::to_string(rows.width) +
                       " bytes need at least that");
  }
  if (rows.height - 1 <= (~std::uint64_t{0} - rows.width) / pitch) {
    std::uint64_t const span = pitch * (rows.height - 1) + rows.width;
    if (ptr != 0 && ptr <= ~Address{0} - span) return;
  }
  throw InvalidRange(std::to_string(rows.height) + " rows, " + std::to_string(pitch) + " bytes apart, at " + name + " " +
                     describe(ptr) + ", are not in memory");
}

CopyPlan plan_rows(MemoryRanges& ranges, Rows const& rows, Direction direction, CopyLimits const& limits) {
  Span const host = rows.host_span(direction);
  CopyRequest const whole{rows.dst, rows.src, host.end - host.start, direction};
  return plan_copy(ranges, whole, false, limits);
}

}  // namespace

void check_rows(Rows const& rows) {
  if (rows.width == 0 || rows.height == 0) {
    throw InvalidRange(std::to_string(rows.height) + " rows of " + std::to_string(rows.width) + " bytes: nothing to copy");
  }
  check_end("dst", rows.dst, rows.dst_pitch, rows);
  check_end("src", rows.src, rows.src_pitch, rows);
}

RowsCopy::RowsCopy(PinnedMap& map, VendorDevice& device, Rows const& rows, Direction direction, CopyLimits const& limits)
    : rows_(rows),
      host_pitch_(direction == Direction::to_device ? rows.src_pitch : rows.dst_pitch),
      ranges_(map, device),
      plan_(plan_rows(ranges_, rows, direction, limits)) {}

void RowsCopy::submit_all(VendorQueue& queue) {
  // A border within a row divides that row alone; one between two rows only ends a block.
  auto const border = [&](std::size_t step) { return plan_.steps[step].dst - rows_.dst; };
  std::size_t step = 1;
  for (std::uint64_t row = 0; row < rows_.height;) {
    std::uint64_t column = 0, end = rows_.height;
    for (; step < plan_.steps.size(); ++step) {
      std::uint64_t const of_row = border(step) / host_pitch_, at = border(step) % host_pitch_;
      bool const within = at > 0 && at < rows_.width;
      std::uint64_t const first_behind = of_row + (at > 0 && !within ? 1 : 0);  // the first row that the border lies before
      if (within && of_row == row) {
        submit_block(queue, row, 1, column, at - column);
        column = at;
        end = row + 1;
      } else if (first_behind > row) {
        end = column > 0 ? end : std::min(end, first_behind);
        break;
      }
    }
    submit_block(queue, row, end - row, column, rows_.width - column);
    row = end;
  }
  count_moved(plan_.path, rows_.width * rows_.height);
}

void RowsCopy::submit_block(VendorQueue& queue, std::uint64_t row, std::uint64_t rows, std::uint64_t column,
                            std::uint64_t bytes) {
  Address const dst = rows_.dst + row * rows_.dst_pitch + column, src = rows_.src + row * rows_.src_pitch + column;
  if (rows == 1) {
    queue.copy(dst, src, bytes);
  } else {
    queue.copy_2d(dst, rows_.dst_pitch, src, rows_.src_pitch, bytes, rows);
  }
  any_submitted_ = true;
}

std::unique_ptr<CopyOperation> rows_in_turn(PinnedMap& map, VendorDevice& device, VendorQueue& queue, Rows const& rows,
                                            CopyLimits const& limits) {
  std::vector<Address> dsts, srcs;
  for (std::uint64_t row = 0; row < rows.height; ++row) {
    dsts.push_back(rows.dst + row * rows.dst_pitch);
    srcs.push_back(rows.src + row * rows.src_pitch);
  }
  Items const items{dsts.data(), srcs.data(), &rows.width, 0, rows.height};
  return std::make_unique<Batch>(map, device, queue, items, Engine::automatic, limits);
}

}  // namespace pinning
