// SPDX-License-Identifier: Apache-2.0
#include "settings.hpp"

#include <cstdlib>
#include <cstring>
#include <string>

#include "../output.hpp"
#include "../policy.hpp"

namespace pinning::tool::cuda {

constinit Settings settings;

namespace {

char const *wrong_name, *wrong_value, *remedy;  // of a variable; the value stays valid in the environment

char const* variable(char const* name) noexcept {
  char const* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

void refuse(char const* name, char const* way_out) noexcept {
  settings.stages = false;
  wrong_name = name, wrong_value = variable(name), remedy = way_out;
}

bool is_on(char const* name) noexcept {
  char const* const value = variable(name);
  if (*value == 0 || strcasecmp(value, "on") == 0) return true;
  if (strcasecmp(value, "off") != 0) refuse(name, "give one of off, on");
  return false;
}

[[gnu::constructor]] void read() {
  settings.watches = *variable("PINNING_REPORT") != 0 || *variable("PINNING_TRACE") != 0;
  settings.stages = is_on("PINNING_COPIES");
  settings.huge_pages = is_on("PINNING_COPIES_HUGE_PAGES");
  settings.min_bytes = std::size_t{4} << 20;  // below, the driver's own copies are as fast
  if (char const* const given = variable("PINNING_COPIES_MIN_BYTES"); *given != 0) {
    auto const bytes = tool::bytes_of(given);
    if (bytes && *bytes > 0) settings.min_bytes = *bytes;
    else refuse("PINNING_COPIES_MIN_BYTES", "give a number of at least 1, such as 64KiB");
  }
  if (!settings.stages && !settings.watches) settings.min_bytes = ~std::size_t{0};
}

}  // namespace

void complain_of_settings() {
  if (wrong_name == nullptr) return;
  tool::say(std::string(wrong_name) + "=" + wrong_value + " means nothing: " + remedy + "; copies are left to the driver");
}

}  // namespace pinning::tool::cuda
