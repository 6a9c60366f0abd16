// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

#include "pinning.h"

namespace pinning {

/// Counted in the child of each fork before anything begins anew there.
PINNING_API extern std::atomic<unsigned> forks;

/// How many forks lie between the process that loaded libpinning and this one: what was made in another generation is a
/// parent's. It takes no system call, and no handler of the fork has run before it is right.
inline unsigned generation() noexcept { return forks.load(std::memory_order_relaxed); }

}  // namespace pinning
