// SPDX-License-Identifier: Apache-2.0
// Copies of pageable memory through pinned blocks, which threads of libpinning fill and empty; copies within host
// memory, in queue order; and signals, by which a queue of one vendor waits for a queue of another.
//
// A queue's blocks form a ring. A copy is submitted to the vendor's queue as a whole, in chunks. Device and threads
// report their progress in words in pinned memory, which count the chunks of all copies of the ring, and wrap:
//
//     to the device:  write(begun)  for each chunk c: wait(moved > c)               copy  write(taken = c + 1)
//     to the host:                  for each chunk c: wait(moved: its block is free) copy  write(taken = c + 1)
//                     end: wait(moved = all)  write(taken = all + 1)
//     in the host:                  write(taken = c + 1)  wait(moved > c)  write(taken = c + 2)
//     a signal:                     write(taken = c + 1)
//     a wait for it:                wait(moved > c)  write(taken = c + 2)
//
// If one end is a file, the threads read or write it instead of pageable memory.
//
// docs/design/staging.md explains why no queue can hang.
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
  std::uint64_t ring_bytes = 64 << 20;      // of one ring; less if little of `staging_bytes` is left
  std::uint64_t staging_bytes = 1 << 30;    // of all rings of a device
  std::uint64_t chunk_bytes = 8 << 20;      // of a chunk at most; down to half of that in copies below 256 MiB
  unsigned threads;                         // of the process; read at its first copy only
  /// How many of them work in one direction at a time; 0: they are no faster than the vendor's own copies, so only
  /// files and copies within the host are left to them, and all may work.
  unsigned threads_to_device, threads_to_host;
  /// A copy into at least so many bytes of new memory has the kernel populate them by huge pages; 0: never.
  std::uint64_t huge_from = 32 << 20;
  PINNING_API StagingLimits() noexcept;
};

/// A copy, a signal or a wait for a signal in a queue. Keep it until the queue's work is complete; once it is
/// destroyed, no thread accesses the host's memory any more, and nothing waits for it. To destroy it takes no longer
/// than to copy 256 KiB, or to read or write as much of a file (1 MiB past the page cache), with the bytes between rows.
class Staged {
 public:
  virtual ~Staged() = default;
  /// For a copy to or from a device: whether the threads have finished reading or writing the host's memory.
  virtual bool moved() const noexcept = 0;
  /// For a copy to a device that `Staging::copy` or `copy_file` returned: whether the device has written all of it, so
  /// that work of any queue finds it. Ask while the staging exists.
  virtual bool arrived() const noexcept = 0;
  /// For a signal: set it, as if its queue had reached it.
  virtual void give() noexcept {}
};

/// The rings of one device; in a forked child they belong to the parent.
class Staging {
 public:
  virtual ~Staging() = default;

  /// Copy parts as one copy: from pageable memory at `src` to memory that the queue copies to, from such memory to
  /// pageable memory at `dst`, or within host memory, where the two ends of a single part may overlap. Null if there is
  /// no pinned memory or no thread, or the queue lacks `waits_for_values`; never within the host. `early`: pageable
  /// memory may be read before the copy's turn, because no work submitted before writes it (CUDA's srcAccessOrder "any"
  /// instead of "stream"). Throws what the queue throws; everything submitted is then complete.
  enum class Toward : std::uint8_t { device, host, in_host };
  virtual std::unique_ptr<Staged> copy(VendorQueue& queue, Toward toward, std::vector<CopyItem> const& parts,
                                       bool early, StagingLimits const& limits) = 0;
  /// The lists of parts that the device reads.
  virtual PartLists& lists() noexcept = 0;
  /// A list whose first word stays 0, for waits that are already satisfied. Release it only when no queue reads it any
  /// more. Throws what the vendor throws.
  virtual std::shared_ptr<PartList const> zero() = 0;
  /// Copy between parts of a file and parts of memory as one copy: into memory, or out of it if the file is written.
  /// The parts' addresses in the file are offsets, ascending. Returns null and throws as `copy`; `early` is that of
  /// `copy`. A read or a write that fails does not end the copy: it is recorded in the outcome, and the copy continues
  /// without moving more bytes.
  enum class Memory : bool { device, host };
  virtual std::unique_ptr<Staged> copy_file(VendorQueue& queue, FileEnd file, Memory memory,
                                            std::vector<FilePart> const& parts, bool early, StagingLimits const& limits) = 0;
  /// Submit a signal, which is set when the queue reaches it.
  virtual std::unique_ptr<Staged> signal(VendorQueue& queue) = 0;
  /// Make later work of the queue wait for a signal that was submitted before, to a queue of any device; once per
  /// signal. Null if the signal is already set.
  virtual std::unique_ptr<Staged> wait(VendorQueue& queue, Staged& signal) = 0;

  /// A block of a ring, for a caller that copies through it by itself; `borrow` returns null if there is none.
  struct Block {
    virtual ~Block() = default;
    Address ptr;
    std::uint64_t size;
  };
  virtual std::unique_ptr<Block> borrow(std::uint64_t at_most, StagingLimits const& limits) = 0;

  /// Free idle rings and unused lists; returns the number of bytes.
  virtual std::uint64_t trim() = 0;
  /// Whether it has no pinned blocks: at most rings for copies within the host, which need none.
  virtual bool empty() noexcept = 0;
  /// Whether there are blocks that a copy may have, if they are idle, or the limits leave room for more.
  virtual bool has_room(StagingLimits const& limits) noexcept = 0;
};

/// The staging of a device, always the same one; objects for the same device in the same context share it.
PINNING_API Staging& staging(VendorDevice& device);
/// Forget the staging of a device, which must be `empty`, before the device is destroyed.
PINNING_API void forget_staging(VendorDevice& device) noexcept;
/// `trim` the staging of every device.
PINNING_API std::uint64_t trim_stagings();
/// Chunks after which an idle ring restarts its count, because HIP compares words without wrapping.
inline constexpr std::uint32_t worn_chunks = 1u << 30;
/// Make one more staging for a device. It may be destroyed once its rings are freed, which only `trim` does.
PINNING_API std::unique_ptr<Staging> make_staging(VendorDevice& device, std::uint32_t worn = worn_chunks);

}  // namespace pinning
