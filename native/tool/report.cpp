// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <ranges>
#include <system_error>
#include <tuple>
#include <vector>

#include "output.hpp"

namespace pinning::tool {

namespace {

constexpr std::size_t shown = 20;

std::string ms(std::chrono::nanoseconds time) {
  return decimal(std::chrono::duration<double, std::milli>(time).count(), 1) + " ms";
}

[[gnu::format(printf, 1, 2)]] std::string line(char const* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return std::string("pinning: ") + text + "\n";
}

}  // namespace

void Report::locked(Range const& range, std::string const& device, Moment began, Moment ended) {
  std::lock_guard const guard(mutex_);
  Buffer& buffer = buffers_[range.start];
  buffer.size = range.size();
  buffer.times++;
  buffer.device = device;
  buffer.locking += ended - began;
  buffer.since = ended;
  buffer.is_locked = true;
  now_locked_ += range.size();
  most_ = std::max(most_, now_locked_);
}

void Report::unlocked(Range const& range, Moment began, Moment ended) {
  std::lock_guard const guard(mutex_);
  Buffer& buffer = buffers_[range.start];
  buffer.unlocking += ended - began;
  buffer.held += began - buffer.since;
  buffer.is_locked = false;
  now_locked_ -= range.size();
}

void Report::refused(Range const& range, std::string const& why) {
  std::lock_guard const guard(mutex_);
  if (refusals_.size() >= 1000 && !refusals_.contains(why)) return;
  Refusal& refusal = refusals_[why];
  refusal.times++;
  refusal.largest = std::max(refusal.largest, range.size());
}

void Report::moved(Range const& buffer, std::size_t bytes, bool to_device, bool locked) {
  std::lock_guard const guard(mutex_);
  Traffic& all = moved_[to_device][locked];
  all.transfers++;
  all.bytes += bytes;
  if (!locked) return;
  auto const entry = buffers_.find(buffer.start);
  if (entry == buffers_.end()) return;
  entry->second.fast.transfers++;
  entry->second.fast.bytes += bytes;
}

bool Report::empty() {
  std::lock_guard const guard(mutex_);
  return buffers_.empty() && refusals_.empty() && !has_moved();
}

std::string Report::text(Moment until) {
  std::lock_guard const guard(mutex_);
  std::chrono::nanoseconds locking{}, unlocking{};
  std::vector<std::pair<Address, Buffer>> largest(buffers_.begin(), buffers_.end());
  for (auto& [start, buffer] : largest) {
    locking += buffer.locking;
    unlocking += buffer.unlocking;
    if (buffer.is_locked) buffer.held += until - buffer.since;
  }
  std::ranges::sort(largest, [](auto const& one, auto const& other) {
    return std::tuple(other.second.fast.bytes, one.first) < std::tuple(one.second.fast.bytes, other.first);
  });
  std::string made = line("%zu buffers locked, %s at most; %s to lock, %s to unlock", largest.size(),
                          in_units(most_).c_str(), ms(locking).c_str(), ms(unlocking).c_str());
  for (int const to_device : {1, 0}) {
    auto const& [plain, fast] = moved_[to_device];
    made += line("%s: %s in %zu transfers of locked memory, %s in %zu of other",
                 to_device ? "to devices" : "from devices", in_units(fast.bytes).c_str(), fast.transfers,
                 in_units(plain.bytes).c_str(), plain.transfers);
  }
  if (!has_moved()) {
    made += line("the runtime has told of no transfer; if there were some, libomptarget does not find the tools' "
                 "interface, which it looks for by the name libomp.so");
  }
  if (!largest.empty()) {
    made += line("%18s %10s %-8s %6s %10s %12s %10s %10s", "buffer", "size", "device", "locked", "to lock", "held",
                 "transfers", "moved");
  }
  for (auto const& [start, buffer] : largest | std::views::take(shown)) {
    made += line("%#18zx %10s %-8s %5zux %10s %12s %10zu %10s", start, in_units(buffer.size).c_str(),
                 buffer.device.c_str(), buffer.times, ms(buffer.locking).c_str(), ms(buffer.held).c_str(),
                 buffer.fast.transfers, in_units(buffer.fast.bytes).c_str());
  }
  if (largest.size() > shown) made += line("and %zu more", largest.size() - shown);
  for (auto const& [why, refusal] : refusals_) {
    made += line("not locked: %zux, up to %s: ", refusal.times, in_units(refusal.largest).c_str());
    made.insert(made.size() - 1, why);  // which may be long
  }
  return made;
}

void write_report(std::string const& where, std::string const& text) {
  if (where == "-") {
    Output::standard_error().write(text);
    return;
  }
  try {
    if (!Output::create(where).write(text)) throw std::system_error(errno, std::generic_category());
  } catch (std::system_error const& error) {
    say("the report " + where + " cannot be written: " + error.code().message());
  }
}

}  // namespace pinning::tool
