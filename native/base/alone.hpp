// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace pinning {

/// Throws Unavailable if another copy of this library was loaded before this one, by its path: each would have its own
/// maps, and unlock pages that the other one holds.
void check_alone();

}  // namespace pinning
