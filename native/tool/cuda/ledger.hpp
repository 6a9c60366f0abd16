// SPDX-License-Identifier: Apache-2.0
// A record of the program's copies: bytes for `pinning top`, and details for the report at exit and the trace.
#pragma once

#include <span>

#include "../report.hpp"
#include "copies.hpp"

namespace pinning::tool::cuda {

/// Called when the program first looks up a copy function of the driver.
void begin_watching() noexcept;

/// Record what one call of the program has copied. `began`: when it was called, if a report or a trace is requested.
void note(std::span<Request const> requests, Outcome const* outcomes, tool::Moment began) noexcept;

}  // namespace pinning::tool::cuda
