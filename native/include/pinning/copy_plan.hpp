// SPDX-License-Identifier: Apache-2.0
// One copy between host and device memory: the path of each part, the reason for it, and the submission.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "memory_ranges.hpp"
#include "operation.hpp"
#include "staging.hpp"
#include "status_page.hpp"
#include "vendor.hpp"

namespace pinning {

/// Why bytes take their path. In the order of `pinning.copies.Reason` and of `pinning_reason`.
enum class Reason : std::uint8_t {
  locked,         // the host's memory is locked
  on_device,      // both ends are memory of one device
  connected,      // one device copies to another itself
  not_connected,  // two devices cannot reach each other
  large,          // pageable, and worth staging
  small,          // pageable, and the vendor's own copy is as fast
  no_values,      // pageable, and the queue cannot wait for values, so it cannot stage
  one_thread,     // pageable, and so few threads stage no faster than the vendor copies
  in_host,        // both ends are the host's
  kernel,         // of a batch: a kernel of the device moves them
  engines,        // of a batch: the copy engines move them
  pageable,       // of a batch: threads gather or scatter them
  no_room,        // worth staging, but there was no pinned memory for it
};

/// From where on one path is faster than another, and how much copies may use; `pinning.copies.Costs` says more.
struct CopyLimits : StagingLimits {
  PINNING_API CopyLimits() noexcept;

  std::uint64_t stage_to_device, stage_to_host;                      // bytes from which pageable memory is staged
  std::uint64_t kernel_from_items = 4, kernel_to_bytes = 128 << 10;  // for a kernel: least items, most bytes of each

  std::uint64_t stage_from(bool to_device) const noexcept { return to_device ? stage_to_device : stage_to_host; }
  bool stages(std::uint64_t size, bool to_device) const noexcept {
    return threads > 1 && (to_device ? threads_to_device : threads_to_host) > 0 && size >= stage_from(to_device);
  }
};

/// Where the two ends of a copy are.
enum class Direction : std::uint8_t { to_device, to_host, on_device, between_devices, through_host, in_host };

/// A requested copy.
struct CopyRequest {
  Address dst, src;
  std::uint64_t size;
  Direction direction;
  bool early = false;  // the source may be read before the copy's turn: no work submitted before writes it
  bool in_turn = false;  // it must not: pending work may write it, and the vendor's own copy would read it at once
  /// From this many bytes on, or from as many as are staged, the vendor is asked whether others have pinned them.
  std::uint64_t ask_from = ~std::uint64_t{0};

  bool to_device() const noexcept { return direction == Direction::to_device; }
  bool has_host_end() const noexcept { return to_device() || direction == Direction::to_host; }
  Address host() const noexcept { return to_device() ? src : dst; }
};

/// Find out where two ranges are, each in host or in device memory. Throws InvalidRange for a range that runs past the
/// end of an allocation of the device, or what the vendor throws.
PINNING_API Direction direction_of(MemoryRanges& ranges, Span dst, Span src);
/// The same for a copy. Throws InvalidRange for an invalid range, too.
PINNING_API CopyRequest request_of(PinnedMap& map, VendorDevice& device, Address dst, Address src, std::uint64_t size);

/// A part of a copy, on one path.
struct CopyStep {
  Address dst, src;
  std::uint64_t size;
  CopyPath path;
};

struct CopyPlan {
  CopyPath path;  // the slowest of its steps
  Reason reason;
  std::vector<CopyStep> steps;  // in order, divided at borders of locks and pieces, across which no vendor copies
};

/// `stages`: whether the queue waits for values. `ranges` holds what is locked. Throws what the vendor throws.
PINNING_API CopyPlan plan_copy(MemoryRanges& ranges, CopyRequest const& request, bool stages, CopyLimits const& limits);

/// A copy for a queue. It holds all locked memory that it copies.
class CopyOperation : public Operation {
 public:
  /// Throws what the vendor throws; everything submitted is then complete.
  void submit(VendorQueue& queue) final {
    try {
      submit_all(queue);
    } catch (...) {
      try {
        if (any_submitted_) queue.synchronize();
      } catch (...) {  // the first error says more
      }
      throw;
    }
  }

  /// The slowest path of its parts, and the reason; final once it is submitted.
  virtual CopyPath path() const noexcept = 0;
  virtual Reason reason() const noexcept = 0;
  /// Whether the device alone moves all bytes.
  bool is_direct() const noexcept { return path() == CopyPath::direct; }

 protected:
  CopyOperation() = default;
  bool any_submitted_ = false;

 private:
  virtual void submit_all(VendorQueue& queue) = 0;
};

/// A copy of one range.
class PlannedCopy final : public CopyOperation {
 public:
  /// `map` is one of `device`, and a queue of `device` copies. Throws what the vendor throws.
  PINNING_API PlannedCopy(PinnedMap& map, VendorDevice& device, CopyRequest const& request, bool stages,
                          CopyLimits const& limits);
  PINNING_API ~PlannedCopy() override;

  CopyRequest const& request() const noexcept { return request_; }
  CopyPlan const& plan() const noexcept { return plan_; }
  CopyPath path() const noexcept override { return no_room_ ? CopyPath::plain : plan_.path; }
  Reason reason() const noexcept override { return no_room_ ? Reason::no_room : plan_.reason; }
  Span written() const noexcept override { return {request_.dst, request_.dst + request_.size}; }

 private:
  void submit_all(VendorQueue& queue) override;
  std::unique_ptr<Staged> staged(VendorQueue& queue, CopyStep const& step);
  void copy_in_turns(VendorQueue& queue, CopyStep const& step);

  Staging& staging_;
  CopyRequest const request_;
  CopyLimits const limits_;
  MemoryRanges ranges_;
  CopyPlan const plan_;
  std::vector<std::unique_ptr<Staged>> staged_;  // destroyed first
  std::shared_ptr<PartList const> zero_;  // for which the queue waits between two pieces
  bool no_room_ = false;
};

/// Return what `attempt` plans and submits; repeat it if the vendor refuses and what is locked has changed meanwhile,
/// because another thread may have locked a part of what was planned as pageable, and no vendor copies across its
/// border. The host memory is in [ptr, ptr + size).
template <class Attempt>
auto resubmitted(PinnedMap& map, Address ptr, std::uint64_t size, Attempt&& attempt) {
  for (int tries = 1; tries < 100; ++tries) {
    std::uint64_t const changes = map.changes();
    try {
      return attempt();
    } catch (VendorError const&) {
      if (!map.changed_since(changes, ptr, size)) throw;
    }
  }
  return attempt();
}

}  // namespace pinning
