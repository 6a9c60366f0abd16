// SPDX-License-Identifier: Apache-2.0
#include "settings.hpp"

#include <span>
#include <string>

#include "../../base/setting.hpp"
#include "../output.hpp"
#include "../policy.hpp"

namespace pinning::tool::cuda {

constinit Settings settings;

namespace {

struct Wrong {
  char const *name, *value, *way_out;  // the value stays valid in the environment
} wrong[3];
int wrongs;

void refuse(char const* name, char const* way_out) noexcept {
  settings.stages = false;
  wrong[wrongs++] = {name, setting(name), way_out};
}

bool is_on(char const* name) noexcept {
  auto const on = read_switch(name, true);
  if (!on) refuse(name, "give one of off, on");
  return on.value_or(false);
}

[[gnu::constructor]] void read() {
  settings.watches = *setting("PINNING_REPORT") != 0 || *setting("PINNING_TRACE") != 0;
  settings.stages = is_on("PINNING_COPIES");
  settings.huge_pages = is_on("PINNING_COPIES_HUGE_PAGES");
  settings.min_bytes = std::size_t{4} << 20;  // below, the driver's own copies are as fast
  if (char const* const given = setting("PINNING_COPIES_MIN_BYTES"); *given != 0) {
    auto const bytes = tool::bytes_of(given);
    if (bytes && *bytes > 0) settings.min_bytes = *bytes;
    else refuse("PINNING_COPIES_MIN_BYTES", "give a number of at least 1, such as 64KiB");
  }
  if (!settings.stages && !settings.watches) settings.min_bytes = ~std::size_t{0};
}

}  // namespace

void complain_of_settings() {
  for (auto const& [name, value, way_out] : std::span(wrong).first(wrongs)) {
    tool::say(std::string(name) + "=" + value + " means nothing: " + way_out + "; copies are left to the driver");
  }
}

}  // namespace pinning::tool::cuda
