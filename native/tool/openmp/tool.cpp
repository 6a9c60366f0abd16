// SPDX-License-Identifier: Apache-2.0
#include "tool.hpp"

#include <fstream>

namespace pinning::tool::openmp {

namespace {

/// A quarter of the mappings that a process may have: each lock may take two, and the program needs some too.
std::size_t most_locks() {
  std::ifstream file("/proc/sys/vm/max_map_count");
  std::size_t most = 0;
  return file >> most ? most / 4 : 65530 / 4;
}

}  // namespace

Tool::Tool() {
  context.policy = policy_of_environment();
  context.frees_seen = frees_are_seen();
  context.most_locks = most_locks();
  if (!context.policy.report.empty()) context.journal.report = std::make_unique<Report>();
  if (!context.policy.trace.empty()) context.journal.trace = Trace::open(context.policy.trace);
}

Tool& Tool::get() {
  static Tool& only = []() -> Tool& {
    Tool* const made = new Tool;  // not destroyed: programs free memory until they exit
    this_process.listener = made;
    started_ = true;
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
  this_process.listener = nullptr;  // drivers shut down now, so nothing can be unlocked
  if (context.journal.trace) context.journal.trace->finish();
  auto const& report = context.journal.report;
  if (!report) return;
  std::string const copies = text_of_copies();
  bool const is_of_openmp = copies.empty() || !report->empty() || may_offload(runtime());
  write_report(context.policy.report, (is_of_openmp ? report->text(now()) : "") + copies);
}

}  // namespace pinning::tool::openmp
