// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hip_runtime.hpp"

namespace pinning::hip {

/// A stream. Each call is made with its device current: the handles of the default streams refer to the current device,
/// and some releases look up addresses there, whichever stream is passed.
class Queue final : public StreamQueue {
 public:
  Queue(Runtime const& runtime, Where device, std::shared_ptr<SpareEvents> spares, bool waits_for_values,
        std::optional<std::uintptr_t> adopted = {})
      : StreamQueue(runtime, device, std::move(spares), Calls::in_place, adopted),
        runtime_(runtime),
        waits_for_values_(waits_for_values) {}
  ~Queue() override { close_quietly(); }

  /// The runtime refuses a host range that begins inside a lock and extends past its end.
  void copy(Address dst, Address src, std::uint64_t size) override;
  void copy_2d(Address dst, std::uint64_t dst_pitch, Address src, std::uint64_t src_pitch, std::uint64_t width,
               std::uint64_t height) override;
  /// Uses hipMemcpyBatchAsync if the runtime has it.
  void copy_batch(CopyItem const* parts, std::uint64_t count) override;
  /// `ptr` is a multiple of `bytes`.
  void fill(Address ptr, std::uint32_t value, unsigned bytes, std::uint64_t count) override;
  bool waits_for_values() const noexcept override { return waits_for_values_; }
  bool reads_early() const noexcept override { return true; }  // not known, and so presumed
  /// The runtime's comparison does not wrap: a word must begin at 0 and not exceed 2**31 - 1. While it waits, the
  /// stream occupies one of the few hardware queues, and other streams that share that queue wait too.
  void wait_value(Address address, std::uint32_t value) override;
  void write_value(Address address, std::uint32_t value) override;

 private:
  void require_values() const;

  Runtime const& runtime_;
  bool const waits_for_values_;
};

}  // namespace pinning::hip
