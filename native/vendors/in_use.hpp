// SPDX-License-Identifier: Apache-2.0
// A vendor's handle that several threads use while one may give it back: a vendor crashes on a handle that is gone, or
// takes another for it.
#pragma once

#include <atomic>

namespace pinning {

/// How many calls use a handle. Each counts itself first and then looks whether the handle is closed; what closes it says so
/// first and then waits for those calls.
class InUse {
 public:
  class User {
   public:
    explicit User(InUse& handle) noexcept : count_(handle.count_) { ++count_; }
    ~User() {
      if (--count_ == 0) count_.notify_all();
    }
    User(User const&) = delete;

   private:
    std::atomic<int>& count_;
  };

  void wait_until_unused() const noexcept {
    for (int users = count_; users != 0; users = count_) count_.wait(users);
  }

 private:
  std::atomic<int> count_ = 0;
};

}  // namespace pinning
