// SPDX-License-Identifier: Apache-2.0
// Waiting for copies in flight. A vendor's unlock does not wait, and on CUDA the copies then fail, and the context with
// them: "unspecified launch failure" (H200, driver 580).
#pragma once

#include "devices.hpp"

namespace pinning::tool::openmp {

/// Look up the vendor's functions in advance, at a time when this thread is not freeing memory.
void prepare_to_drain(Vendor vendor);

/// Wait until everything submitted so far to the vendor's devices is complete. CUDA only: mlock involves no device, and
/// HSA has no such call.
void drain(Vendor vendor) noexcept;

}  // namespace pinning::tool::openmp
