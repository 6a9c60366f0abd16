// SPDX-License-Identifier: Apache-2.0
// What became of the program's copies: bytes for `pinning top`, and more for the report at its end and the trace where they
// are wanted.
#pragma once

#include <span>

#include "../openmp/report.hpp"
#include "copies.hpp"

namespace pinning::preload {

/// When the program looks for the driver's copies.
void begin_watching() noexcept;

/// What one call of the program's has copied. `began`: when it was called, if that matters.
void note(std::span<Request const> requests, Outcome const* outcomes, omp::Moment began) noexcept;

}  // namespace pinning::preload
