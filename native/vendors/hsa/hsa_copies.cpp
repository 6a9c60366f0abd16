// SPDX-License-Identifier: Apache-2.0
#include "hsa_copies.hpp"

#include <algorithm>

namespace pinning::hsa {

namespace {

bool is_rectangle(Rows const& rows, Reached const& to, Reached const& from) {
  bool const aligned = (to.ptr | from.ptr | rows.dst_pitch | rows.src_pitch) % 4 == 0;
  return aligned && rows.width <= std::min(rows.dst_pitch, rows.src_pitch) &&
         std::max(rows.width, rows.height) <= UINT32_MAX;
}

int begin_rectangle(Runtime const& runtime, Rows const& rows, Reached const& to, Reached const& from, Handle signal,
                    std::uint32_t waits, Handle const* after) {
  PitchedPointer const dst{pointer(to.ptr), rows.dst_pitch, rows.dst_pitch * rows.height};
  PitchedPointer const src{pointer(from.ptr), rows.src_pitch, rows.src_pitch * rows.height};
  Dim3 const start{0, 0, 0};
  Dim3 const extent{static_cast<std::uint32_t>(rows.width), static_cast<std::uint32_t>(rows.height), 1};
  int const direction = 2 * int{from.is_gpu} + int{to.is_gpu};
  return runtime.hsa_amd_memory_async_copy_rect(&dst, &start, &src, &start, &extent,
                                                from.is_gpu ? from.agent : to.agent, direction, waits, after, signal);
}

}  // namespace

void begin(Runtime const& runtime, Rows const& rows, Reached const& to, Reached const& from, Handle signal,
           std::optional<Handle> after) {
  std::uint32_t const waits = after ? 1 : 0;
  Handle const* const awaited = after ? &*after : nullptr;
  auto const height = static_cast<std::int64_t>(rows.height);
  if (height > 1 && is_rectangle(rows, to, from)) {
    runtime.hsa_signal_subtract_screlease(signal, height - 1);
    if (begin_rectangle(runtime, rows, to, from, signal, waits, awaited) == 0) return;
    // The engines have no such command, or not for such large pitches.
    runtime.hsa_signal_subtract_screlease(signal, 1 - height);
  }
  for (std::int64_t row = 0; row < height; ++row) {
    auto const at = static_cast<std::uint64_t>(row);
    int const code = runtime.hsa_amd_memory_async_copy(
        pointer(to.ptr + at * rows.dst_pitch), to.agent, pointer(from.ptr + at * rows.src_pitch), from.agent,
        rows.width, waits, awaited, signal);
    if (code == 0) continue;
    runtime.hsa_signal_subtract_screlease(signal, height - row);
    runtime.check_code(runtime.hsa_amd_memory_async_copy, code);
  }
}

void copy_and_wait(Runtime const& runtime, Reached const& to, Reached const& from, std::uint64_t size) {
  SpareSignals spares(runtime);
  Handle const signal = spares.take(1);
  std::int64_t value = 0;
  try {
    begin(runtime, {to.ptr, 0, from.ptr, 0, size, 1}, to, from, signal, std::nullopt);
    value = runtime.hsa_signal_wait_scacquire(signal, HSA_SIGNAL_CONDITION_LT, 1, UINT64_MAX, HSA_WAIT_STATE_BLOCKED);
  } catch (VendorError const&) {  // nothing was submitted
    spares.give(signal);
    throw;
  }
  spares.give(signal);
  if (value < 0) throw copy_failed(value);
}

void copy_by_runtime(Runtime const& runtime, Rows const& rows) {
  for (std::uint64_t row = 0; row < rows.height; ++row) {
    runtime.check(runtime.hsa_memory_copy, pointer(rows.dst + row * rows.dst_pitch),
                  pointer(rows.src + row * rows.src_pitch), rows.width);
  }
}

void fill_device(Runtime const& runtime, Address ptr, std::uint32_t value, unsigned bytes, std::uint64_t count) {
  // Four bytes of the repeated value from `offset` on; little-endian, like all hosts with GPUs.
  auto const word_at = [&](std::uint64_t offset) {
    std::uint32_t word = 0;
    for (unsigned at = 0; at < 4; ++at) word |= ((value >> (8 * ((offset + at) % bytes))) & 0xFF) << (8 * at);
    return word;
  };
  Address const end = ptr + bytes * count;
  Address first = std::min((ptr + 3) & ~Address{3}, end), last = std::max(end & ~Address{3}, ptr);
  if (last > first) {
    int const code = runtime.hsa_amd_memory_fill(pointer(first), word_at(first - ptr), (last - first) / 4);
    runtime.check_code(runtime.hsa_amd_memory_fill, code);
  } else {
    first = last = end;
  }
  // At most 3 bytes are left at either end, or fewer than 8 in all.
  auto const write = [&](Address start, Address stop) {
    if (start >= stop) return;
    std::uint32_t const words[]{word_at(start - ptr), word_at(start - ptr + 4)};
    runtime.check(runtime.hsa_memory_copy, pointer(start), words, stop - start);
  };
  write(ptr, first);
  write(last, end);
}

VendorError copy_failed(std::int64_t value) {
  return VendorError({"hsa_amd_memory_async_copy", value, "the completion signal is negative", ""});
}

}  // namespace pinning::hsa
