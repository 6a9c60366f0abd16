// SPDX-License-Identifier: Apache-2.0
// Copies by the GPUs' engines, whose end a signal tells; and fills.
#pragma once

#include "hsa_pointers.hpp"
#include "hsa_signals.hpp"

namespace pinning::hsa {

/// `height` rows of `width` bytes, whose starts are so many bytes apart.
struct Rows {
  Address dst;
  std::uint64_t dst_pitch;
  Address src;
  std::uint64_t src_pitch, width, height;

  std::uint64_t span(std::uint64_t pitch) const noexcept { return (height - 1) * pitch + width; }
};

/// Has engines copy `rows`, of which one end at least is a GPU's, once the signal `after`, if any, is 0.
///
/// By the end of all the signal is counted down `height` times, and is below 0 if a copy has failed. It is counted down
/// as often where this throws VendorError, by the end of what was begun by then.
void begin(Runtime const& runtime, Rows const& rows, Reached const& to, Reached const& from, Handle signal,
           std::optional<Handle> after);

/// Copies, of which one end at least is a GPU's, and waits for the end. Throws VendorError, also where the copy fails
/// under way: then the code is the signal's value.
void copy_and_wait(Runtime const& runtime, Reached const& to, Reached const& from, std::uint64_t size);

/// Copies rows of which no GPU reaches an end, or none has one, and waits for the end: the runtime locks them meanwhile.
void copy_by_runtime(Runtime const& runtime, Rows const& rows);

/// Writes to device memory: whole words by a GPU, what is left on either side as a copy. The runtime has no other fills.
void fill_device(Runtime const& runtime, Address ptr, std::uint32_t value, unsigned bytes, std::uint64_t count);

/// The error of a copy whose signal has become negative.
VendorError copy_failed(std::int64_t value);

}  // namespace pinning::hsa
