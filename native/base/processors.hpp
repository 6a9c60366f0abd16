// SPDX-License-Identifier: Apache-2.0
// How many of the machine's processors this process may use.
#pragma once

#include <string>

namespace pinning {

/// Number of whole processors that its affinity and the quotas of its control groups (cpu.max, or cpu.cfs_quota_us of
/// version 1) allow; at least one. `root` is where /proc and /sys are.
unsigned usable_processors(std::string const& root = "/") noexcept;

/// The same, as it was at the first call.
unsigned usable_processors_once() noexcept;

}  // namespace pinning
