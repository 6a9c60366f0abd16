// SPDX-License-Identifier: Apache-2.0
#include "trace.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <system_error>
#include <utility>

namespace pinning::tool {

namespace {

/// In microseconds, to the nanosecond.
std::string us(Moment::duration time) {
  return decimal(std::chrono::duration<double, std::micro>(time).count(), 3);
}

/// In ASCII: texts of a loader or a driver may be in any encoding.
std::string quoted(std::string const& text) {
  std::string made = "\"";
  for (char const each : text) {
    auto const code = static_cast<unsigned char>(each);
    char escaped[8];
    if (each == '"' || each == '\\') {
      made += '\\';
      made += each;
    } else if (code < 0x20 || code >= 0x7f) {
      std::snprintf(escaped, sizeof escaped, "\\u%04x", code);
      made += escaped;
    } else {
      made += each;
    }
  }
  return made + '"';
}

std::string head(char const* phase, char const* what, Moment::duration at) {
  char text[160];
  std::snprintf(text, sizeof text, "\"ph\":\"%s\",\"name\":\"%s\",\"pid\":%d,\"tid\":%ld,\"ts\":", phase, what, getpid(),
                syscall(SYS_gettid));
  return text + us(at);
}

std::string arguments(Range const& range, std::string const& device) {
  if (range.empty()) return "\"device\":" + quoted(device);
  char text[96];
  std::snprintf(text, sizeof text, "\"address\":\"%#" PRIxPTR "\",\"bytes\":%zu,\"device\":", range.start,
                range.size());
  return text + quoted(device);
}

}  // namespace

std::unique_ptr<Trace> Trace::open(std::string const& file) {
  try {
    return std::unique_ptr<Trace>(new Trace(Output::create(file)));
  } catch (std::system_error const& error) {
    say("the trace " + file + " cannot be written: " + error.code().message());
    return nullptr;
  }
}

Trace::Trace(Output file) : file_(std::move(file)) {
  write("[\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":" + std::to_string(getpid()) +
        ",\"args\":{\"name\":\"transfers\"}}");
}

void Trace::finish() {
  std::lock_guard const guard(mutex_);
  write("\n]\n");
  ended_ = true;
}

void Trace::span(char const* what, Moment began, Moment ended, Range const& range, std::string const& device,
                 char const* memory) {
  event(head("X", what, began - start_) + ",\"dur\":" + us(ended - began) + ",\"args\":{" + arguments(range, device) +
        (memory != nullptr ? ",\"memory\":" + quoted(memory) : "") + "}");
}

void Trace::instant(char const* what, Range const& range, std::string const& device, std::string const& why) {
  event(head("i", what, now() - start_) + ",\"s\":\"t\",\"args\":{" + arguments(range, device) +
        ",\"why\":" + quoted(why) + "}");
}

void Trace::locked_bytes(std::size_t bytes) {
  event(head("C", "locked bytes", now() - start_) + ",\"args\":{\"bytes\":" + std::to_string(bytes) + "}");
}

void Trace::event(std::string const& fields) {
  std::lock_guard const guard(mutex_);
  write(",\n{" + fields + "}");
}

void Trace::write(std::string const& text) {
  if (ended_ || file_.write(text)) return;
  ended_ = true;
  say("the trace " + file_.path() + " ends early: " +
      (errno == EBADF ? "the program has closed it, and it is there no more" : std::generic_category().message(errno)));
}

}  // namespace pinning::tool
