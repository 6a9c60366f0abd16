// SPDX-License-Identifier: Apache-2.0
// Operations that are one call of the vendor, or of the staging.
#pragma once

#include <memory>

#include "operation.hpp"
#include "staging.hpp"

namespace pinning {

/// A copy that the caller knows to be one vendor call, of memory that it keeps.
class OneCopy final : public Operation {
 public:
  OneCopy() = default;
  void set(Address dst, Address src, std::uint64_t size) noexcept { item_ = {dst, src, size}; }
  void submit(VendorQueue& queue) override { queue.copy(item_.dst, item_.src, item_.size); }
  Span written() const noexcept override { return {item_.dst, item_.dst + item_.size}; }

 private:
  CopyItem item_{};
};

/// A fill of memory that the caller keeps: the low `width` bytes of `value`, `count` times.
class OneFill final : public Operation {
 public:
  OneFill() = default;
  void set(Address ptr, std::uint32_t value, unsigned width, std::uint64_t count) noexcept {
    ptr_ = ptr, value_ = value, width_ = width, count_ = count;
  }
  void submit(VendorQueue& queue) override { queue.fill(ptr_, value_, width_, count_); }
  Span written() const noexcept override { return {ptr_, ptr_ + width_ * count_}; }

 private:
  Address ptr_ = 0;
  std::uint32_t value_ = 0;
  unsigned width_ = 0;
  std::uint64_t count_ = 0;
};

/// A signal, which is set when its queue reaches it, and for which one queue of another vendor can wait.
class Signal final : public Operation {
 public:
  explicit Signal(VendorDevice& device) : staging_(staging(device)) {}
  void submit(VendorQueue& queue) override { staged_ = staging_.signal(queue); }
  Span written() const noexcept override { return {}; }
  void abandon() noexcept override {
    if (staged_ != nullptr) staged_->give();
  }
  Staged& staged() noexcept { return *staged_; }

 private:
  Staging& staging_;
  std::unique_ptr<Staged> staged_;
};

/// A wait for a signal, which the caller keeps.
class SignalWait final : public Operation {
 public:
  SignalWait(VendorDevice& device, Signal& signal) : staging_(staging(device)), signal_(signal) {}
  void submit(VendorQueue& queue) override { staged_ = staging_.wait(queue, signal_.staged()); }
  Span written() const noexcept override { return {}; }
  bool writes_unknown() const noexcept override { return true; }  // the work that it waits for

 private:
  Staging& staging_;
  Signal& signal_;
  std::unique_ptr<Staged> staged_;
};

}  // namespace pinning
