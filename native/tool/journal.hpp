// SPDX-License-Identifier: Apache-2.0
// A record of what the tool did, for the report at exit and the trace. Does nothing if neither is requested.
#pragma once

#include <memory>
#include <string>

#include "range.hpp"
#include "report.hpp"
#include "trace.hpp"

namespace pinning::tool {

struct Journal {
  std::unique_ptr<Report> report;
  std::unique_ptr<Trace> trace;

  bool is_kept() const noexcept { return report != nullptr || trace != nullptr; }
  void locked(Range const& range, std::string const& device, Moment began, Moment ended) noexcept {
    note([&] {
      if (report) report->locked(range, device, began, ended);
      if (trace) trace->span("lock", began, ended, range, device);
    });
  }
  void unlocked(Range const& range, std::string const& device, char const* why, Moment began, Moment ended) noexcept {
    note([&] {
      if (report) report->unlocked(range, began, ended);
      if (trace) trace->span(why, began, ended, range, device);
    });
  }
  void refused(Range const& range, std::string const& device, std::string const& why) noexcept {
    note([&] {
      if (report) report->refused(range, why);
      if (trace) trace->instant("not locked", range, device, why);
    });
  }
  void locked_bytes(std::size_t bytes) noexcept {
    note([&] {
      if (trace) trace->locked_bytes(bytes);
    });
  }

 private:
  /// If memory runs out, an entry is missing and everything else continues.
  template <class Body>
  static void note(Body&& body) noexcept {
    try {
      body();
    } catch (std::exception const&) {
    }
  }
};

}  // namespace pinning::tool
