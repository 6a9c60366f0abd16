// SPDX-License-Identifier: Apache-2.0
// What the environment wants of copies; see docs/any-program.md.
#pragma once

#include <cstddef>

namespace pinning::preload {

struct Settings {
  std::size_t min_bytes = ~std::size_t{0};  // PINNING_COPIES_MIN_BYTES: smaller copies are the driver's, unlooked at
  bool stages = true;                       // PINNING_COPIES: on, or off, which only watches
  bool watches = false;                     // there is to be a report or a trace
};
/// As the environment was when this library was loaded; before that all copies are the driver's.
extern Settings settings;

/// Says what is wrong with it, once.
void complain_of_settings();

}  // namespace pinning::preload
