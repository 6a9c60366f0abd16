// SPDX-License-Identifier: Apache-2.0
// Settings in environment variables; docs/environment.md lists them.
#pragma once

#include <strings.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <optional>

namespace pinning {

/// The value of a variable; empty if it is unset.
inline char const* setting(char const* name) noexcept {
  char const* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

/// Whether a switch is on (or 1) rather than off (or 0); `otherwise` if the variable is unset or empty; nothing if it has
/// another value.
inline std::optional<bool> read_switch(char const* name, bool otherwise) noexcept {
  char const* const value = setting(name);
  if (*value == 0) return otherwise;
  if (strcasecmp(value, "on") == 0 || std::strcmp(value, "1") == 0) return true;
  if (strcasecmp(value, "off") == 0 || std::strcmp(value, "0") == 0) return false;
  return std::nullopt;
}

/// As `read_switch`; another value is reported on standard error and counts as `otherwise`. Does not allocate.
inline bool is_switched_on(char const* name, bool otherwise) noexcept {
  if (auto const on = read_switch(name, otherwise)) return *on;
  char const* const texts[] = {"pinning: ", name, "=", setting(name), " means nothing: give one of off, on; `",
                               otherwise ? "on" : "off", "` is used\n"};
  iovec parts[std::size(texts)];
  for (std::size_t i = 0; i < std::size(texts); ++i) parts[i] = {const_cast<char*>(texts[i]), std::strlen(texts[i])};
  [[maybe_unused]] auto const written = writev(STDERR_FILENO, parts, std::size(parts));
  return otherwise;
}

}  // namespace pinning
