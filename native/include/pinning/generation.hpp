// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

#include "pinning.h"

namespace pinning {

/// Incremented in the child of each fork, before anything is restarted there.
PINNING_API extern std::atomic<unsigned> forks;

/// Number of forks between the process that loaded libpinning and this one: what was made in another generation belongs
/// to a parent. It needs no system call, and is correct before the fork handlers of libpinning's users run.
inline unsigned generation() noexcept { return forks.load(std::memory_order_relaxed); }

}  // namespace pinning
