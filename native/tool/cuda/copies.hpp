// SPDX-License-Identifier: Apache-2.0
// Staging of copies that the program requests from the driver.
#pragma once

#include <cstdint>
#include <pinning/locker.hpp>
#include <span>

namespace pinning::tool::cuda {

/// A copy as the program requests it: rows of `width` bytes; a plain copy has one.
struct Request {
  enum class Toward : std::uint8_t { device, host, either };  // either: the pointers decide
  Toward toward;
  Address dst, src;
  std::uint64_t width;
  std::uintptr_t stream;      // never 0: a default stream has its own handle
  bool synchronous = false;   // the call has no stream: a device has the bytes when it returns
  std::uint64_t height = 1, dst_pitch = 0, src_pitch = 0;
  bool early = false;         // the source may be read before the stream reaches the copy

  std::uint64_t size() const noexcept { return width * height; }
  /// Bytes from the first to the last of one end.
  std::uint64_t extent(std::uint64_t pitch) const noexcept { return (height - 1) * pitch + width; }
  /// Whether an end would pass the end of all addresses.
  bool wraps() const noexcept {
    auto const passes = [&](Address first, std::uint64_t pitch) {
      Address last;
      return __builtin_mul_overflow(height - 1, pitch, &last) || __builtin_add_overflow(last, width, &last) ||
             __builtin_add_overflow(last, first, &last);
    };
    return passes(dst, dst_pitch) || passes(src, src_pitch);
  }
};

/// How a copy was made. All but `staged` and `split` are the driver's own copies.
enum class Outcome : std::uint8_t {
  staged,         // by the threads of libpinning
  split,          // at the borders of our own locks, after the driver had refused it
  direct,         // of pinned memory
  small,
  off,            // PINNING_COPIES
  captured,       // its stream is under capture
  other_memory,   // not between the host's memory and a device's
  pinned_in_part,  // it begins in pinned memory and leaves it
  few,            // not enough has been copied yet for pinned memory to be worth it
  no_room,        // no pinned memory is available
  refused,        // the driver refused a part of it
  old_driver,
  one_processor,  // the threads would take it from the program
  child,          // this is a forked child of a process that copied
  sandboxed,      // the process has forbidden itself system calls, and staging needs some
  outcomes,
};

/// Decide which requests can be staged, and copy nothing. Requests whose outcome is not `staged` before the call are
/// ignored; the others are of one stream, and get their outcome. `Toward::either` is replaced by the actual direction.
void decide(std::span<Request> requests, Outcome* outcomes) noexcept;

/// Copy the requests for which `decide` has left `staged` by the threads of libpinning, through pinned blocks, in any
/// order, and return no earlier than the driver would: to the host once all is copied, to the device once the source is
/// read, and if the call is synchronous, once the device has it all. They get their outcome: after any but `staged`,
/// nothing is in progress.
void stage(std::span<Request> requests, Outcome* outcomes) noexcept;

/// Repeat in parts a copy that the driver has refused, if it crosses the border of a lock of our own, unknown to the
/// program. False if that is not the reason.
bool split(Request request) noexcept;

}  // namespace pinning::tool::cuda
