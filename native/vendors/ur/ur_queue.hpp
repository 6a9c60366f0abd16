// SPDX-License-Identifier: Apache-2.0
// In-order queues of Unified Runtime, and events in them.
#pragma once

#include <atomic>
#include <memory>
#include <pinning/vendor.hpp>

#include "../in_use.hpp"
#include "ur_loader.hpp"

namespace pinning::ur {

/// A ur_queue_handle_t, which no call uses after it has been released.
class QueueHandle {
 public:
  /// `device` is the device's name, for errors.
  QueueHandle(void* handle, std::string const& device, bool owned) : handle(handle), device_(device), owned_(owned) {}
  /// Releases an owned queue. Does not block: the queue still completes its work.
  ~QueueHandle();

  /// Runs `use` if the queue is open; else throws Unsupported, whose message names `function`.
  template <class Signature, class Use>
  void use(Function<Signature> const& function, Use&& use) {
    InUse::User const user(users_);
    if (!open_) refuse(name_of(function));
    use();
  }

  /// Waits until no call uses it, and closes it. After an error it is still open.
  void close();

  void* const handle;

 private:
  [[noreturn]] void refuse(std::string const& function) const;

  std::string const& device_;
  bool const owned_;
  InUse users_;
  std::atomic<bool> open_ = true;
};

class Queue : public VendorQueue {
 public:
  /// `calls`: whether it can call host functions, which few adapters support.
  Queue(std::shared_ptr<QueueHandle> queue, std::string const& device, bool calls)
      : queue_(std::move(queue)), device_(device), calls_(calls) {}

  std::uintptr_t handle() const noexcept override { return reinterpret_cast<std::uintptr_t>(queue_->handle); }
  void copy(Address dst, Address src, std::uint64_t size) override;
  void copy_2d(Address dst, std::uint64_t dst_pitch, Address src, std::uint64_t src_pitch, std::uint64_t width,
               std::uint64_t height) override;
  void fill(Address ptr, std::uint32_t value, unsigned bytes, std::uint64_t count) override;
  /// The function must not call Unified Runtime.
  void call(void (*function)(void*), void* argument) override;
  bool waits_for_values() const noexcept override { return false; }
  void wait_value(Address address, std::uint32_t value) override;
  void write_value(Address address, std::uint32_t value) override;
  std::unique_ptr<VendorEvent> record() override;
  /// Accepts an event of any queue of the platform.
  void wait(VendorEvent& event) override;
  /// Also true after work has failed; only events report failures.
  bool done() override;
  void synchronize() override;
  void close() override { queue_->close(); }

 private:
  template <class Signature, class... Arguments>
  void submit(Function<Signature> const& function, Arguments... arguments);
  [[noreturn]] void refuse_values() const;

  std::shared_ptr<QueueHandle> queue_;
  std::string const& device_;
  bool const calls_;
};

}  // namespace pinning::ur
