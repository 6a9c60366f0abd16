// SPDX-License-Identifier: Apache-2.0
// A timeline for Perfetto and chrome://tracing: the trace event format, as an array whose end may be missing. Each
// event is written immediately, so that none is lost however the program ends.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "output.hpp"
#include "range.hpp"
#include "report.hpp"

namespace pinning::tool {

class Trace {
 public:
  /// Null if the file cannot be written, which is reported.
  static std::unique_ptr<Trace> open(std::string const& file);
  /// Complete the file; nothing is written afterwards.
  void finish();

  void span(char const* what, Moment began, Moment ended, Range const& range = {}, std::string const& device = "",
            char const* memory = nullptr);
  void instant(char const* what, Range const& range, std::string const& device, std::string const& why);
  void locked_bytes(std::size_t bytes);

 private:
  explicit Trace(Output file);
  void event(std::string const& fields);
  void write(std::string const& text);

  std::mutex mutex_;
  Output file_;
  Moment const start_ = now();
  bool ended_ = false;
};

}  // namespace pinning::tool
