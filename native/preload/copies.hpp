// SPDX-License-Identifier: Apache-2.0
// What becomes of a copy that the program asks the driver for.
#pragma once

#include <cstdint>
#include <pinning/locker.hpp>
#include <span>

namespace pinning::preload {

/// A copy as the program asks for it: rows of `width` bytes, of which a plain copy has one.
struct Request {
  enum class Toward : std::uint8_t { device, host, either };  // either: as the pointers say
  Toward toward;
  Address dst, src;
  std::uint64_t width;
  std::uintptr_t stream;      // never 0: a default stream by its own handle
  bool synchronous = false;   // of a call without a stream
  std::uint64_t height = 1, dst_pitch = 0, src_pitch = 0;
  bool early = false;         // the source may be read before the stream comes to it

  std::uint64_t size() const noexcept { return width * height; }
  /// From the first byte to the last one of an end.
  std::uint64_t extent(std::uint64_t pitch) const noexcept { return (height - 1) * pitch + width; }
};

/// What became of it. All but `staged` and `split` are the driver's own copies.
enum class Outcome : std::uint8_t {
  staged,         // by the threads of libpinning
  split,          // at the borders of our own locks, where the driver had refused it
  direct,         // of memory that is pinned
  small,
  off,            // PINNING_COPIES
  captured,       // its stream is captured into a graph
  other_memory,   // not between pageable memory and a device
  pinned_in_part,
  few,            // not enough has been copied yet for pinned memory to be worth it
  no_room,        // there is no pinned memory to be had
  refused,        // the driver refused a part of it
  old_driver,
  one_processor,  // the threads would take it from the program
  child,          // of a fork of a process that copied
  sandboxed,      // the process has forbidden itself system calls, of which staging needs some
  outcomes,
};

/// Copies by the threads of libpinning and through pinned blocks, and returns when the driver would: to the device once
/// the source is read, to the host once all is copied. Any other outcome than `staged`: nothing is under way. Of a request for
/// either way it says which one it is. All are of one stream, and may be done in any order. Those whose outcome is not `staged`
/// before are left alone.
void stage(std::span<Request> requests, Outcome* outcomes) noexcept;

/// Of a copy that the driver has refused: does it in parts where it crosses the border of a lock of our own, of which the
/// program knows nothing. False where that is not the reason.
bool split(Request const& request) noexcept;

}  // namespace pinning::preload
