// SPDX-License-Identifier: Apache-2.0
// Settings of copies from the environment; see docs/any-program.md.
#pragma once

#include <cstddef>

namespace pinning::tool::cuda {

struct Settings {
  std::size_t min_bytes = ~std::size_t{0};  // PINNING_COPIES_MIN_BYTES: smaller copies go to the driver unchecked
  bool stages = true;                       // PINNING_COPIES: on, or off, which only watches
  bool huge_pages = true;                   // PINNING_COPIES_HUGE_PAGES: on, or off, for new memory that is copied to
  bool watches = false;                     // a report or a trace is requested
};
/// From the environment at the time when this library was loaded; before that, all copies go to the driver.
extern Settings settings;

/// Report invalid settings, each once.
void complain_of_settings();

}  // namespace pinning::tool::cuda
