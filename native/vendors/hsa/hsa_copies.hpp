// SPDX-License-Identifier: Apache-2.0
// Copies by the GPUs' copy engines, with completion signals; and fills.
#pragma once

#include "hsa_pointers.hpp"
#include "hsa_signals.hpp"

namespace pinning::hsa {

/// `height` rows of `width` bytes; the pitches are the distances of their starts in bytes.
struct Rows {
  Address dst;
  std::uint64_t dst_pitch;
  Address src;
  std::uint64_t src_pitch, width, height;

  std::uint64_t span(std::uint64_t pitch) const noexcept { return (height - 1) * pitch + width; }
};

/// Submits copies of `rows`, at least one end of which is a GPU's, to the engines, to begin once the signal `after` (if
/// any) is 0.
///
/// When all are complete, `signal` has been decremented by `height`, and is below 0 if a copy failed. If this throws
/// VendorError, the decrement is the same, complete when the copies that were submitted have ended.
void begin(Runtime const& runtime, Rows const& rows, Reached const& to, Reached const& from, Handle signal,
           std::optional<Handle> after);

/// Copies and waits; at least one end is a GPU's. Throws VendorError, also if the copy fails after it has begun: then
/// the code is the signal's value.
void copy_and_wait(Runtime const& runtime, Reached const& to, Reached const& from, std::uint64_t size);

/// Copies rows and waits, if the GPU cannot reach an end or neither is a GPU's: the runtime locks them meanwhile.
void copy_by_runtime(Runtime const& runtime, Rows const& rows);

/// Fills device memory: whole words by a GPU, the bytes left at either end by copies. The runtime has no other fills.
void fill_device(Runtime const& runtime, Address ptr, std::uint32_t value, unsigned bytes, std::uint64_t count);

/// The error of a copy whose signal has become negative.
VendorError copy_failed(std::int64_t value);

}  // namespace pinning::hsa
