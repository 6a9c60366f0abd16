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

/// Pieces that take the vendor a bounded time each, as measured during the lock. Other threads can watch its progress,
/// wait for it, and end the lock.
///
/// Locks: `mutex_` guards all that changes, and is held only for a read or a store.
class PacedPieces final : public Pieces {
 public:
  using Clock = std::chrono::steady_clock;

  /// `unit`: as in `Pieces`. `largest`: bytes that one vendor call can take. `longest`: time that one piece may take,
  /// or 0 if each is of `unit` bytes.
  PacedPieces(std::uint64_t unit, std::uint64_t largest, std::chrono::nanoseconds longest)
      : unit_(unit), largest_(largest), longest_(longest) {}

  std::uint64_t unit() const noexcept override { return unit_; }

  /// Wait until enough for a piece is in memory. Throws Ended once the lock is to end.
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

  bool cut(std::uint64_t size, std::uint64_t most) noexcept override {
    std::lock_guard const guard(mutex_);
    if (std::min(size, unit_ == 0 ? size : pace_) <= most) return false;
    largest_ = most;
    if (unit_ == 0 || unit_ > most) unit_ = most;
    pace_ = std::clamp(pace_, unit_, most / unit_ * unit_);
    return true;
  }

  void locked(std::uint64_t held) noexcept override {
    std::lock_guard const guard(mutex_);
    if (longest_.count() != 0) set_pace(static_cast<double>((Clock::now() - began_).count()));
    locked_ = held;
    news_.notify_all();
  }

  /// Set how many bytes from the start are in memory; at first, all are.
  void bring_in(std::uint64_t bytes) noexcept {
    std::lock_guard const guard(mutex_);
    in_memory_ = bytes;
    news_.notify_all();
  }

  /// Have no more pieces locked.
  void end() noexcept {
    std::lock_guard const guard(mutex_);
    ending_ = true;
    news_.notify_all();
  }

  /// Report that all is locked, or nothing; ends all waits.
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

  /// Wait until this many bytes are locked or the lock has finished, at most so many seconds.
  void wait(std::uint64_t bytes, double seconds) {
    std::unique_lock guard(mutex_);
    news_.wait_for(guard, std::chrono::duration<double>(seconds), [&] { return over_ || locked_ >= bytes; });
  }

 private:
  /// After a piece that took longer than allowed, the next is smaller at once; other times enter a mean, because one
  /// call may be late by chance. A piece is at most twice as large as the last.
  void set_pace(double took) noexcept {
    double const each = took / static_cast<double>(last_);
    ns_each_ = ns_each_ == 0 || took > static_cast<double>(longest_.count()) ? each : (3 * ns_each_ + each) / 4;
    double const fit = aim * static_cast<double>(longest_.count()) / std::max(ns_each_, 1e-9);
    auto const units = static_cast<std::uint64_t>(std::min(fit, 2.0 * static_cast<double>(last_))) / unit_;
    pace_ = std::clamp(units * unit_, unit_, std::max(largest_ / unit_ * unit_, unit_));
  }

  static constexpr double aim = 2.0 / 3;  // of the time that a piece may take, because times vary

  std::uint64_t unit_, largest_;
  std::chrono::nanoseconds const longest_;
  mutable std::mutex mutex_;
  std::condition_variable news_;
  std::uint64_t pace_ = unit_, last_ = 0, locked_ = 0, in_memory_ = ~std::uint64_t{0};
  double ns_each_ = 0;
  Clock::time_point began_{};
  bool ending_ = false, over_ = false;
};

}  // namespace pinning
