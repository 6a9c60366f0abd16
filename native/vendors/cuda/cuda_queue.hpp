// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda_driver.hpp"

namespace pinning::cuda {

using OpenQueues = std::atomic<unsigned>;

/// A stream. Its handle determines its context, so none need be current (driver 580; older drivers return "invalid
/// context" or "invalid handle"). The handles of the default streams refer to those of the current context.
class Queue final : public StreamQueue {
 public:
  /// `queues`: the number of the device's open queues. `own_spares`: `spares` serve this queue alone, and end with it.
  Queue(Driver const& driver, Where context, std::shared_ptr<OpenQueues> queues, std::shared_ptr<SpareEvents> spares,
        bool moves_parts, std::optional<std::uintptr_t> adopted = {}, bool own_spares = false)
      : StreamQueue(driver, context, spares, adopted && *adopted <= last_default ? Calls::in_place : Calls::as_it_is,
                    adopted),
        driver_(driver),
        queues_(std::move(queues)),
        moves_parts_(moves_parts),
        own_spares_(own_spares ? std::move(spares) : nullptr) {
    ++*queues_;
  }
  ~Queue() override { close_quietly(); }

  std::uint64_t stream_number() override;
  /// The driver refuses a host range that crosses the border of a lock. A copy from host memory to host memory, locked
  /// or not, blocks until it is done, and so until all work before it is done.
  void copy(Address dst, Address src, std::uint64_t size) override;
  /// Pitches are at least `width` and below 2 GiB.
  void copy_2d(Address dst, std::uint64_t dst_pitch, Address src, std::uint64_t src_pitch, std::uint64_t width,
               std::uint64_t height) override;
  /// What a GPU moves in 0.3 ms, if the device has another open queue. A copy engine switches to another stream only
  /// when the current one waits: 51 KiB take 14 ms behind four copies of 200 MB, and 0.25 ms behind the same in such
  /// pieces, which take 2 % longer (H100, driver 580).
  std::uint64_t turn_bytes() const noexcept override {
    return *queues_ > 1 ? 16 << 20 : StreamQueue::turn_bytes();
  }
  /// Uses cuMemcpyBatchAsync if the driver has it.
  void copy_batch(CopyItem const* parts, std::uint64_t count) override;
  bool moves_parts() const noexcept override { return moves_parts_; }
  void move_parts(Address parts, std::uint64_t count, std::uint64_t bytes, bool aligned) override;
  bool kernel_is_late(std::uint64_t count) override;
  /// `ptr` is a multiple of `bytes`.
  void fill(Address ptr, std::uint32_t value, unsigned bytes, std::uint64_t count) override;
  bool waits_for_values() const noexcept override { return true; }
  bool reads_early() const noexcept override { return true; }  // its first 2 MiB
  void wait_value(Address address, std::uint32_t value) override;
  void write_value(Address address, std::uint32_t value) override;
  void write_then_wait(Address written, std::uint32_t value, Address awaited, std::uint32_t reached) override;
  /// Uses a user object, which the graph and all its instances share. A graph's first user object adds 1.4 us to each
  /// launch (H200, driver 580), further ones nothing.
  void keep_with_graph(void* object, void (*release)(void*)) override;
  void close() override;

 protected:
  bool wants_place(int code) const noexcept override {
    return code == CUDA_ERROR_INVALID_CONTEXT || code == CUDA_ERROR_INVALID_HANDLE;
  }
  std::uint64_t capture_id() override;

 private:
  struct Capture {
    std::uint64_t id;
    void* graph;
  };
  Capture capture_info();

  static constexpr std::uintptr_t last_default = 2;  // 0 and 1: the legacy default stream; 2: the calling thread's own

  std::unique_ptr<VendorEvent> event_or_none() noexcept;

  Driver const& driver_;
  std::shared_ptr<OpenQueues> const queues_;
  std::atomic_flag counted_out_;
  bool const moves_parts_;
  std::atomic_flag timing_;  // try-lock for the next three
  std::unique_ptr<VendorEvent> kernel_began_, kernel_ended_;
  double kernel_takes_ = 0;  // seconds, if multiprocessors are free
  std::atomic<double> kernel_waited_ = 0;
  std::atomic<unsigned> batches_since_ = 0;  // moved by the copy engines
  std::shared_ptr<SpareEvents> const own_spares_;
};

}  // namespace pinning::cuda
