// SPDX-License-Identifier: Apache-2.0
// Copies of pageable memory by way of pinned blocks, which threads of libpinning fill and empty; copies within the
// host's memory in a queue's turn; and signals, by which a queue of one vendor waits for one of another.
//
// A queue's blocks form a ring. All of a copy is put into the vendor's queue at once, in chunks; device and threads tell
// each other how far they are by words in pinned memory, which count the ring's chunks, of all its copies, and wrap:
//
//     to the device:  write(begun)  for each chunk c: wait(moved > c)               copy  write(taken = c + 1)
//     to the host:                  for each chunk c: wait(moved: its block is free) copy  write(taken = c + 1)
//                     end: wait(moved = all)  write(taken = all + 1)
//     in the host:                  write(taken = c + 1)  wait(moved > c)  write(taken = c + 2)
//     a signal:                     write(taken = c + 1)
//     a wait for it:                wait(moved > c)  write(taken = c + 2)
//
// Where one end is a file, the threads read or write that in place of pageable memory.
//
// docs/design/staging.md says why no queue can hang there.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "file.hpp"
#include "part_lists.hpp"
#include "vendor.hpp"

namespace pinning {

/// How much of the machine staging may use. The defaults suit the processors that this process may run on.
struct StagingLimits {
  std::uint64_t ring_bytes = 64 << 20;      // of one ring; less where little is left
  std::uint64_t staging_bytes = 1 << 30;    // of all rings of a device
  std::uint64_t chunk_bytes = 8 << 20;      // that a queue copies at once; half of it in copies below 256 MiB
  unsigned threads;                         // that there are; counts at the first copy of the process
  /// Of them at work in one direction at a time; 0 where they are no faster than the vendor's own copies, so that only
  /// files and copies within the host are theirs, and all may work.
  unsigned threads_to_device, threads_to_host;
  PINNING_API StagingLimits() noexcept;
};

/// A copy, a signal or a wait for one that is in a queue. Keep it until the queue's work is over; when it goes, no thread
/// touches the host's memory any more, and nothing waits for it. Its end takes no longer than to copy 256 KiB, or to read
/// or write as much of a file (1 MiB past the page cache).
class Staged {
 public:
  virtual ~Staged() = default;
  /// Of a copy to or from a device: whether no thread reads or writes the host's memory any more.
  virtual bool moved() const noexcept = 0;
  /// Of a signal: as if its queue had come to it.
  virtual void give() noexcept {}
};

/// The rings of one device; after a fork they are its parent's.
class Staging {
 public:
  virtual ~Staging() = default;

  /// Copies parts as one: from pageable memory at `src` to memory that the queue copies to, from such memory to pageable
  /// memory at `dst`, or within the host's, where the two ends of a single part may overlap. Null where there is no pinned
  /// memory to be had, and never in the host. `early`: what is pageable may be read before the copy's turn, because nothing
  /// that is submitted already writes it (CUDA's srcAccessOrder "any", rather than "stream"). Throws what the queue throws;
  /// what was submitted is over then.
  enum class Toward : std::uint8_t { device, host, in_host };
  virtual std::unique_ptr<Staged> copy(VendorQueue& queue, Toward toward, std::vector<CopyItem> const& parts, bool early,
                                       StagingLimits const& limits) = 0;
  /// Where the device reads lists of parts.
  virtual PartLists& lists() noexcept = 0;
  /// A list whose first word stays 0, for queues that are to wait for nothing. Let it go once no queue reads it. Throws what
  /// the vendor throws.
  virtual std::shared_ptr<PartList const> zero() = 0;
  /// Copies between parts of a file and parts of memory as one copy: into memory, or out of it where the file is written.
  /// The parts' ends in the file are offsets, ascending. Null where there is no pinned memory to be had for a device's.
  /// `early` and what is thrown are as of `copy`. A read or a write that fails ends nothing: the outcome says so,
  /// and the copy goes on without moving more bytes.
  enum class Memory : bool { device, host };
  virtual std::unique_ptr<Staged> copy_file(VendorQueue& queue, FileEnd file, Memory memory,
                                            std::vector<CopyItem> const& parts, bool early, StagingLimits const& limits) = 0;
  /// Given when the queue comes to it.
  virtual std::unique_ptr<Staged> signal(VendorQueue& queue) = 0;
  /// Later work of the queue waits for a signal in a queue of any device, which was submitted before; once for each.
  /// Null where that was given already.
  virtual std::unique_ptr<Staged> wait(VendorQueue& queue, Staged& signal) = 0;

  /// A block of a ring, for a caller that copies through it in its own way; null where there is none.
  struct Block {
    virtual ~Block() = default;
    Address ptr;
    std::uint64_t size;
  };
  virtual std::unique_ptr<Block> borrow(std::uint64_t at_most, StagingLimits const& limits) = 0;

  /// Gives the rings back that are idle, and lists that nobody uses; how many bytes.
  virtual std::uint64_t trim() = 0;
  /// Whether it has no rings.
  virtual bool empty() noexcept = 0;
};

/// Of a device, the same as long as the device is there; devices that are one in the same context have one.
PINNING_API Staging& staging(VendorDevice& device);
/// Before a device goes: that of this one, which is `empty`.
PINNING_API void forget_staging(VendorDevice& device) noexcept;
/// `trim` of all these.
PINNING_API std::uint64_t trim_stagings();
/// A ring that has counted so many chunks counts anew when it is idle: HIP compares words without wrapping.
inline constexpr std::uint32_t worn_chunks = 1u << 30;
/// One more for a device, which may go once its rings are given back; they are by `trim` only.
PINNING_API std::unique_ptr<Staging> make_staging(VendorDevice& device, std::uint32_t worn = worn_chunks);

}  // namespace pinning
