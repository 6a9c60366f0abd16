// SPDX-License-Identifier: Apache-2.0
#include "ledger.hpp"

#include <cxxabi.h>
#include <dlfcn.h>
#include <unwind.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <pinning/status_page.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "../../base/setting.hpp"
#include "../output.hpp"
#include "../this_process.hpp"
#include "../openmp/tool.hpp"
#include "../uncancelled.hpp"
#include "script_line.hpp"
#include "settings.hpp"

namespace pinning::tool::cuda {

namespace {

constexpr std::size_t shown_callers = 8, most_callers = 1000, most_buffers = 10000;
constexpr int deepest = 48;  // frames that are searched for the caller

struct Traffic {
  std::size_t copies = 0, bytes = 0;
  double seconds = 0;

  void add(std::size_t size, double took) {
    ++copies;
    bytes += size;
    seconds += took;
  }
  std::string text() const { return tool::in_units(bytes) + " in " + std::to_string(copies); }
  std::string rate() const {
    double const per_second = seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0;
    return tool::decimal(seconds, 3) + " s, " + tool::decimal(per_second, 1) + " GB/s";
  }
};

char const* reason(Outcome outcome) noexcept {
  switch (outcome) {
    case Outcome::off: return "PINNING_COPIES is off";
    case Outcome::captured: return "the stream is captured into a graph";
    case Outcome::other_memory: return "not between ordinary memory and a device";
    case Outcome::pinned_in_part: return "a part of the memory is pinned";
    case Outcome::few: return "too little was copied so far for pinned blocks to be worth it";
    case Outcome::no_room: return "no pinned memory was to be had";
    case Outcome::refused: return "the driver refused to stage them";
    case Outcome::old_driver: return "the driver is older than 12.0";
    case Outcome::one_processor: return "the process may use one processor only";
    case Outcome::child: return "the process is a fork of one that copied";
    case Outcome::sandboxed: return "the process has forbidden itself system calls";
    default: return "";
  }
}

/// Whether a library is one between a program and the driver.
bool is_between(std::string_view module) noexcept {
  return module.starts_with("libpinning") || module.starts_with("libcuda.so") || module.starts_with("libcudart");
}

/// For example "libtorch_cuda.so: at::native::copy_".
std::string native_caller() {
  struct Search {
    int depth = 0;
    std::string name;
  } search;
  auto const look = [](_Unwind_Context* frame, void* into) {
    auto& search = *static_cast<Search*>(into);
    Dl_info info;
    auto* const address = reinterpret_cast<void*>(_Unwind_GetIP(frame) - 1);
    if (++search.depth > deepest) return _URC_END_OF_STACK;
    if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return _URC_NO_REASON;
    std::string_view const path(info.dli_fname), module = path.substr(path.find_last_of('/') + 1);
    if (is_between(module)) return _URC_NO_REASON;
    search.name = std::string(module);
    if (info.dli_sname == nullptr) return _URC_END_OF_STACK;
    int status = 0;
    std::unique_ptr<char, decltype(&std::free)> const plain(
        abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status), std::free);
    std::string_view const name(status == 0 ? plain.get() : info.dli_sname);
    search.name += ": " + std::string(name.substr(0, name.find('(')));
    return _URC_END_OF_STACK;
  };
  _Unwind_Backtrace(look, &search);
  return search.name.empty() ? "unknown" : search.name;
}

/// For example "train.py:42 in step, libtorch_cuda.so: at::native::copy_".
std::string caller() {
  std::string const line = python_line();
  return line + (line.empty() ? "" : ", ") + native_caller();
}

CopyPath path_of(Outcome outcome) noexcept {
  switch (outcome) {
    case Outcome::staged:
    case Outcome::split: return CopyPath::staged;
    case Outcome::direct: return CopyPath::direct;
    case Outcome::small: return CopyPath::small;
    default: return CopyPath::plain;
  }
}

class Ledger {
 public:
  void add(std::span<Request const> requests, Outcome const* outcomes, tool::Moment began) {
    auto const ended = tool::now();
    double all = 0;
    bool any_large = false;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      all += static_cast<double>(requests[i].size());
      any_large |= outcomes[i] != Outcome::small;
    }
    std::string const by = any_large ? caller() : "";
    for (std::size_t i = 0; i < requests.size(); ++i) {  // each gets its share of the time
      double const share = all > 0 ? static_cast<double>(requests[i].size()) / all : 0;
      auto const until = began + std::chrono::duration_cast<tool::Moment::duration>((ended - began) * share);
      if (outcomes[i] != Outcome::small) trace(requests[i], outcomes[i], began, until);
      add(requests[i], outcomes[i], std::chrono::duration<double>(until - began).count(), by);
    }
  }

  std::string text() {
    std::lock_guard const guard(mutex_);
    std::string text;
    char const* const directions[] = {"to devices", "from devices", "either way"};
    for (int way = 0; way < 3; ++way) text += line(directions[way], traffic_[way]);
    if (text.empty()) text = "pinning: no copies by CUDA's driver were seen\n";
    for (int outcome = 0; outcome < static_cast<int>(Outcome::outcomes); ++outcome) {
      std::string_view const why = reason(static_cast<Outcome>(outcome));
      Traffic all;
      for (auto const& traffic : traffic_) {
        all.copies += traffic[outcome].copies, all.bytes += traffic[outcome].bytes, all.seconds += traffic[outcome].seconds;
      }
      if (all.copies == 0 || why.empty()) continue;
      text += "pinning: left to the driver: " + all.text() + " (" + all.rate() + "): " + std::string(why) + "\n";
    }
    if (!sizes_.empty()) {
      text += "pinning: large copies by size:";
      for (auto const& [size, count] : sizes_) text += " " + tool::in_units(size) + " " + std::to_string(count) + "x";
      text += "\n";
    }
    if (again_.copies > 0) {
      text += "pinning: copied again from or to the same ordinary memory: " + again_.text() +
              ": locked by the program (pinning.lock, pin_memory), it would be copied without processor time\n";
    }
    std::vector<std::pair<std::string, Traffic>> most(callers_.begin(), callers_.end());
    std::ranges::sort(most, [](auto const& one, auto const& other) { return one.second.bytes > other.second.bytes; });
    for (std::size_t i = 0; i < std::min(most.size(), shown_callers); ++i) {
      text += "pinning: by " + most[i].first + ": " + most[i].second.text() + " (" + most[i].second.rate() + ")\n";
    }
    return text;
  }

  /// If the tool runs, its trace is used for both.
  void open_trace() {
    char const* const file = setting("PINNING_TRACE");
    if (*file != 0 && openmp::Tool::running() == nullptr) own_trace_ = tool::Trace::open(file);
  }
  void finish_trace() {
    if (own_trace_) own_trace_->finish();
  }

 private:
  void add(Request const& request, Outcome outcome, double seconds, std::string const& by) {
    std::lock_guard const guard(mutex_);
    traffic_[static_cast<int>(request.toward)][static_cast<int>(outcome)].add(request.size(), seconds);
    if (outcome == Outcome::small) return;
    ++sizes_[std::bit_floor(request.size())];
    if (callers_.size() < most_callers || callers_.contains(by)) callers_[by].add(request.size(), seconds);
    if (outcome != Outcome::staged && outcome != Outcome::off) return;
    Address const host = request.toward == Request::Toward::device ? request.src : request.dst;
    auto const buffer = std::pair(host, request.size());
    if (!buffers_.contains(buffer)) {
      if (buffers_.size() < most_buffers) buffers_[buffer] = 1;
    } else if (++buffers_[buffer] > 1) {
      again_.add(request.size(), seconds);
    }
  }

  using ByOutcome = Traffic[static_cast<int>(Outcome::outcomes)];

  static std::string line(char const* direction, ByOutcome const& traffic) {
    auto const of = [&](Outcome outcome) -> Traffic const& { return traffic[static_cast<int>(outcome)]; };
    std::string text;
    auto const say = [&](Outcome outcome, char const* what, bool timed) {
      if (of(outcome).copies == 0) return;
      text += (text.empty() ? "" : "; ") + of(outcome).text() + what + (timed ? " (" + of(outcome).rate() + ")" : "");
    };
    say(Outcome::staged, " staged", true);
    say(Outcome::split, " across a lock", true);
    say(Outcome::direct, " of pinned memory", false);
    say(Outcome::small, " too small to stage", true);
    return text.empty() ? "" : std::string("pinning: copied ") + direction + ": " + text + "\n";
  }

  void trace(Request const& request, Outcome outcome, tool::Moment began, tool::Moment ended) {
    openmp::Tool* const tool = openmp::Tool::running();
    tool::Trace* const into = own_trace_ || tool == nullptr ? own_trace_.get() : tool->context.journal.trace.get();
    if (into == nullptr) return;
    bool const to_device = request.toward == Request::Toward::device;
    Address const host = to_device ? request.src : request.dst;
    char const* const memory = outcome == Outcome::staged  ? "staged"
                               : outcome == Outcome::split  ? "split"
                               : outcome == Outcome::direct ? "pinned"
                                                            : reason(outcome);
    into->span(to_device ? "copy to device" : "copy from device", began, ended, {host, host + request.size()}, "cuda", memory);
  }

  std::mutex mutex_;
  ByOutcome traffic_[3];  // to devices, to the host, either
  std::map<std::size_t, std::size_t> sizes_;
  std::map<std::string, Traffic> callers_;
  std::map<std::pair<Address, std::size_t>, unsigned> buffers_;
  Traffic again_;
  std::unique_ptr<tool::Trace> own_trace_;
};

/// Never destroyed: programs copy until they exit.
Ledger& ledger() {
  static Ledger& only = *new Ledger;
  return only;
}

/// Finish the trace, and write the report, unless the tool was started: it writes one for both.
void at_exit(int, void*) {
  if (!tool::this_process.began || tool::this_process.sandboxed || !tool::this_process.copies) return;
  ledger().finish_trace();
  char const* const report = setting("PINNING_REPORT");
  if (!openmp::Tool::was_started() && *report != 0) tool::write_report(report, ledger().text());
}

[[gnu::constructor]] void begin() {
  tool::text_of_copies = [] { return tool::this_process.copies ? ledger().text() : std::string(); };
  if (*setting("PINNING_REPORT") != 0 || *setting("PINNING_TRACE") != 0) on_exit(at_exit, nullptr);
}

}  // namespace

void begin_watching() noexcept {
  if (!tool::this_process.sandboxed) show_status();
  if (!settings.watches) return;
  try {
    ledger().open_trace();
  } catch (...) {  // out of memory: no trace
  }
}

void note(std::span<Request const> requests, Outcome const* outcomes, tool::Moment began) noexcept {
  if (!tool::this_process.began) return;
  for (std::size_t i = 0; i < requests.size(); ++i) count_moved(path_of(outcomes[i]), requests[i].size());
  if (!settings.watches) return;
  tool::Uncancelled const uncancelled;
  try {
    ledger().add(requests, outcomes, began);
  } catch (...) {  // out of memory: the report lacks this call
  }
}

}  // namespace pinning::tool::cuda
