// SPDX-License-Identifier: Apache-2.0
// How many of the machine's processors this process may use.
#pragma once

#include <string>

namespace pinning {

/// Number of whole processors that its affinity and the quotas of its control groups (cpu.max, or cpu.cfs_quota_us of
/// version 1) allow; at least one. `root` is where /proc and /sys are.
unsigned usable_processors(std::string const& root = "/") noexcept;

}  // namespace pinning
