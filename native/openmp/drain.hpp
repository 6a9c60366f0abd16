// SPDX-License-Identifier: Apache-2.0
// Waiting for copies in flight. A vendor's unlock does not, and on CUDA the copies then fail and the context with them:
// "unspecified launch failure" (H200, driver 580).
#pragma once

#include "devices.hpp"

namespace pinning::omp {

/// Finds the vendor's functions, while no thread is in the middle of freeing memory.
void prepare_to_drain(Vendor vendor);

/// Returns when all that was submitted to the vendor's devices so far is done. Of CUDA alone: mlock concerns no device,
/// and HSA has no such call.
void drain(Vendor vendor) noexcept;

}  // namespace pinning::omp
