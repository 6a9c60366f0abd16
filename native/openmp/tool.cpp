// SPDX-License-Identifier: Apache-2.0
#include "tool.hpp"

#include <pthread.h>

#include <cerrno>
#include <cstring>

namespace pinning::omp {

Tool::Tool() {
  context.policy = policy_of_environment();
  context.frees_seen = frees_are_seen();
  if (!context.policy.report.empty()) context.journal.report = std::make_unique<Report>();
  if (!context.policy.trace.empty()) context.journal.trace = Trace::open(context.policy.trace);
}

Tool& Tool::get() {
  static Tool& only = []() -> Tool& {
    Tool* const made = new Tool;  // not destroyed: programs free memory until the end
    pthread_atfork(nullptr, nullptr, [] { running_ = nullptr; });
    running_ = made;
    return *made;
  }();
  return only;
}

bool Tool::unlock(Address ptr) {
  for (Locks& each : locks_) {
    if (each.unlock(ptr)) return true;
  }
  return false;
}

void Tool::finish() {
  running_ = nullptr;  // drivers end now, so nothing can be unlocked
  if (auto const& report = context.journal.report) {
    std::string const& file = context.policy.report;
    std::FILE* const to = file == "-" ? stderr : std::fopen(file.c_str(), "we");
    if (to == nullptr) return say("the report " + file + " cannot be written: " + std::strerror(errno));
    report->print(to, now());
    if (to != stderr) std::fclose(to);
  }
  if (context.journal.trace) context.journal.trace->finish();
}

}  // namespace pinning::omp
