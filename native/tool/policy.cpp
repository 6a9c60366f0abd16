// SPDX-License-Identifier: Apache-2.0
#include "policy.hpp"

#include <unistd.h>

#include <charconv>
#include <string_view>

#include "../base/setting.hpp"
#include "output.hpp"

namespace pinning::tool {

namespace {

/// The same in every locale.
std::string lower(std::string text) {
  for (char& each : text) {
    if ('A' <= each && each <= 'Z') each = static_cast<char>(each - 'A' + 'a');
  }
  return text;
}

/// Half of the machine's memory.
std::size_t default_budget() {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) / 2 * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

class Reader {
 public:
  explicit Reader(Policy& policy) : policy_(policy) {}

  template <class Value>
  void word(char const* name, Value& value, std::initializer_list<std::pair<char const*, Value>> words) {
    std::string const text = lower(setting(name));
    if (text.empty()) return;
    std::string known;
    for (auto const& [word, meaning] : words) {
      if (text == word) {
        value = meaning;
        return;
      }
      known += (known.empty() ? "" : ", ") + std::string(word);
    }
    refuse(name, "give one of " + known);
  }

  void number(char const* name, std::size_t& value, std::size_t least, char const* example) {
    std::string const text = setting(name);
    if (text.empty()) return;
    auto const read = bytes_of(text);
    if (read && *read >= least) value = *read;
    else refuse(name, "give a number of at least " + std::to_string(least) + ", such as " + example);
  }

 private:
  void refuse(char const* name, std::string const& remedy) {
    say(std::string(name) + "=" + setting(name) + " means nothing: " + remedy + "; nothing is locked");
    policy_.mode = Mode::off;
  }

  Policy& policy_;
};

}  // namespace

std::optional<std::size_t> bytes_of(std::string const& text) {
  std::size_t value = 0;
  auto const [stopped, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  std::string unit = lower(std::string(stopped, text.data() + text.size()));
  std::erase(unit, ' ');
  int shift = 0;
  if (!unit.empty() && unit != "b") {
    std::size_t const place = std::string_view("kmgt").find(unit[0]);
    std::string_view const rest = std::string_view(unit).substr(1);
    if (place == std::string_view::npos || !(rest.empty() || rest == "b" || rest == "ib")) return std::nullopt;
    shift = 10 * (static_cast<int>(place) + 1);
  }
  if (value > (~std::size_t{0} >> shift)) return std::nullopt;
  return value << shift;
}

Policy policy_of_environment() {
  Policy policy;
  policy.budget = default_budget();
  std::size_t after = policy.after;
  Reader read(policy);
  read.word<Mode>("PINNING_LOCK_MAPPED", policy.mode,
                  {{"off", Mode::off}, {"on", Mode::on}, {"mandatory", Mode::mandatory}});
  read.word<bool>("PINNING_LOCK_UNTIL", policy.until_freed, {{"freed", true}, {"unmapped", false}});
  read.number("PINNING_LOCK_MIN_BYTES", policy.min_bytes, 1, "64KiB");
  read.number("PINNING_LOCK_BUDGET", policy.budget, 0, "8GiB");
  read.number("PINNING_LOCK_AFTER", after, 1, "2");
  policy.after = static_cast<unsigned>(std::min<std::size_t>(after, ~0U));
  policy.report = setting("PINNING_REPORT");
  policy.trace = setting("PINNING_TRACE");
  return policy;
}

}  // namespace pinning::tool
