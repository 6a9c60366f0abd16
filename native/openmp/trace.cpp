// SPDX-License-Identifier: Apache-2.0
#include "trace.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstring>

#include "policy.hpp"

namespace pinning::omp {

namespace {

double us(Moment::duration time) { return std::chrono::duration<double, std::micro>(time).count(); }

std::string quoted(std::string const& text) {
  std::string made = "\"";
  for (char const each : text) {
    if (each == '"' || each == '\\') made += '\\';
    if (static_cast<unsigned char>(each) >= 0x20) made += each;
  }
  return made + '"';
}

std::string head(char const* phase, char const* what, double at) {
  char text[160];
  std::snprintf(text, sizeof text, "\"ph\":\"%s\",\"name\":\"%s\",\"pid\":%d,\"tid\":%ld,\"ts\":%.3f", phase, what,
                getpid(), syscall(SYS_gettid), at);
  return text;
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
  std::FILE* const made = std::fopen(file.c_str(), "we");
  if (made != nullptr) return std::unique_ptr<Trace>(new Trace(made));
  say("the trace " + file + " cannot be written: " + std::strerror(errno));
  return nullptr;
}

Trace::Trace(std::FILE* file) : file_(file) {
  std::fputs("[\n", file_);
  event("\"ph\":\"M\",\"name\":\"process_name\",\"pid\":" + std::to_string(getpid()) +
        ",\"args\":{\"name\":\"OpenMP transfers\"}");
}

void Trace::finish() {
  std::lock_guard const guard(mutex_);
  if (file_ == nullptr) return;
  std::fputs("\n]\n", file_);
  std::fclose(file_);
  file_ = nullptr;
}

void Trace::span(char const* what, Moment began, Moment ended, Range const& range, std::string const& device,
                 char const* memory) {
  char text[64];
  std::snprintf(text, sizeof text, ",\"dur\":%.3f,\"args\":{", us(ended - began));
  event(head("X", what, us(began - start_)) + text + arguments(range, device) +
        (memory != nullptr ? ",\"memory\":" + quoted(memory) : "") + "}");
}

void Trace::instant(char const* what, Range const& range, std::string const& device, std::string const& why) {
  event(head("i", what, us(now() - start_)) + ",\"s\":\"t\",\"args\":{" + arguments(range, device) +
        ",\"why\":" + quoted(why) + "}");
}

void Trace::locked_bytes(std::size_t bytes) {
  event(head("C", "locked bytes", us(now() - start_)) + ",\"args\":{\"bytes\":" + std::to_string(bytes) + "}");
}

void Trace::event(std::string const& fields) {
  std::lock_guard const guard(mutex_);
  if (file_ == nullptr) return;
  std::fprintf(file_, "%s{%s}", first_ ? "" : ",\n", fields.c_str());
  first_ = false;
}

}  // namespace pinning::omp
