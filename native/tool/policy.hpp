// SPDX-License-Identifier: Apache-2.0
// The tool's settings, from the environment; see docs/openmp.md.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace pinning::tool {

/// "4096", "64 KiB", "1m", "2GB": all units are powers of 1024.
std::optional<std::size_t> bytes_of(std::string const& text);

enum class Mode { off, on, mandatory };

struct Policy {
  Mode mode = Mode::on;                    // PINNING_LOCK_MAPPED
  std::size_t min_bytes = 1 << 20;         // PINNING_LOCK_MIN_BYTES: smaller mappings are left alone
  unsigned after = 2;                      // PINNING_LOCK_AFTER: the transfer of a buffer that locks it, from 1
  std::size_t budget = ~std::size_t{0};    // PINNING_LOCK_BUDGET: bytes locked at once
  bool until_freed = true;                 // PINNING_LOCK_UNTIL: freed or unmapped
  std::string report;                      // PINNING_REPORT: "-" for standard error, or a file; empty for none
  std::string trace;                       // PINNING_TRACE: a file; empty for none
};

/// Read the settings. If a variable has an unknown value, it is reported and nothing is locked.
Policy policy_of_environment();

}  // namespace pinning::tool
