// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>

#include "errors.hpp"
#include "pieces.hpp"

namespace pinning {

/// Pieces that take a vendor a bounded time each, as measured while the lock goes on; other threads watch how far it is,
/// wait for that, and end it.
///
/// Locks: `mutex_` guards all that changes, and is held for a look or a store.
class PacedPieces final : public Pieces {
 public:
  using Clock = std::chrono::steady_clock;

  /// `unit`: as `Pieces` has it. `largest`: bytes that one vendor call can take. `longest`: what one piece may take; 0
  /// where each is of `unit` bytes.
  PacedPieces(std::uint64_t unit, std::uint64_t largest, std::chrono::nanoseconds longest)
      : unit_(unit), largest_(largest), longest_(longest) {}

  std::uint64_t unit() const noexcept override { return unit_; }

  /// Waits until as much as it takes is in memory. Throws Ended once it is to end.
  std::uint64_t next(std::uint64_t held, std::uint64_t size) override {
    std::unique_lock guard(mutex_);
    std::uint64_t const most = unit_ == 0 ? size : std::min(pace_, size - held);
    std::uint64_t const least = unit_ == 0 ? size : std::min(unit_, size - held);
    news_.wait(guard, [&] { return ending_ || in_memory_ >= held + least; });
    if (ending_) throw Ended("the lock was ended when " + std::to_string(held) + " bytes were locked");
    std::uint64_t bytes = std::min(most, in_memory_ - held);
    if (unit_ != 0 && held + bytes != size) bytes = bytes / unit_ * unit_;
    last_ = bytes;
    began_ = Clock::now();
    return bytes;
  }

  void locked(std::uint64_t held) noexcept override {
    std::lock_guard const guard(mutex_);
    if (longest_.count() != 0) set_pace(static_cast<double>((Clock::now() - began_).count()));
    locked_ = held;
    news_.notify_all();
  }

  /// So many bytes from the start are in memory; at first all.
  void bring_in(std::uint64_t bytes) noexcept {
    std::lock_guard const guard(mutex_);
    in_memory_ = bytes;
    news_.notify_all();
  }

  /// No more pieces.
  void end() noexcept {
    std::lock_guard const guard(mutex_);
    ending_ = true;
    news_.notify_all();
  }

  /// All is locked, or nothing; ends all waits.
  void finish(std::uint64_t held) noexcept {
    std::lock_guard const guard(mutex_);
    locked_ = held;
    over_ = true;
    news_.notify_all();
  }

  std::uint64_t held() const noexcept {
    std::lock_guard const guard(mutex_);
    return locked_;
  }

  /// Returns once so many bytes are locked, or all is over, or after so many seconds.
  void wait(std::uint64_t bytes, double seconds) {
    std::unique_lock guard(mutex_);
    news_.wait_for(guard, std::chrono::duration<double>(seconds), [&] { return over_ || locked_ >= bytes; });
  }

 private:
  /// A piece that took longer than it may makes the next one smaller at once; others count as in a mean, for one call
  /// may be late by chance. At most twice as large as the last.
  void set_pace(double took) noexcept {
    double const each = took / static_cast<double>(last_);
    ns_each_ = ns_each_ == 0 || took > static_cast<double>(longest_.count()) ? each : (3 * ns_each_ + each) / 4;
    double const fit = aim * static_cast<double>(longest_.count()) / std::max(ns_each_, 1e-9);
    auto const units = static_cast<std::uint64_t>(std::min(fit, 2.0 * static_cast<double>(last_))) / unit_;
    pace_ = std::clamp(units * unit_, unit_, std::max(largest_ / unit_ * unit_, unit_));
  }

  static constexpr double aim = 2.0 / 3;  // of the time that a piece may take: not all take the same

  std::uint64_t const unit_, largest_;
  std::chrono::nanoseconds const longest_;
  mutable std::mutex mutex_;
  std::condition_variable news_;
  std::uint64_t pace_ = unit_, last_ = 0, locked_ = 0, in_memory_ = ~std::uint64_t{0};
  double ns_each_ = 0;
  Clock::time_point began_{};
  bool ending_ = false, over_ = false;
};

}  // namespace pinning
