// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace pinning::tool {

/// During its lifetime, memory that this thread frees is the tool's or a vendor's own, and the hooks ignore it.
class Inside {
 public:
  Inside() noexcept { depth++; }
  ~Inside() { depth--; }
  Inside(Inside const&) = delete;
  static bool now() noexcept { return depth != 0; }

 private:
  static inline thread_local int depth = 0;
};

}  // namespace pinning::tool
