// SPDX-License-Identifier: Apache-2.0
// A vendor's handle that several threads use while one may release it: with a released handle a vendor crashes, or uses
// another object that has the same handle by then.
#pragma once

#include <atomic>

namespace pinning {

/// Counts the calls that use a handle. Each call counts itself first and then checks whether the handle is closed; the
/// closing thread marks it closed first and then waits for those calls.
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
