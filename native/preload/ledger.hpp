// SPDX-License-Identifier: Apache-2.0
// What became of the program's copies, for the report at its end and the trace. Nothing is counted where neither is wanted.
#pragma once

#include "../openmp/report.hpp"
#include "copies.hpp"

namespace pinning::preload {

/// When the program looks for the driver's copies: opens the trace.
void begin_watching() noexcept;

/// `began`: when the program called.
void note(Request const& request, Outcome outcome, omp::Moment began) noexcept;

}  // namespace pinning::preload
