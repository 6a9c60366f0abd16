// SPDX-License-Identifier: Apache-2.0
// If this library was loaded into a program that neither started the tool nor copied: one line at exit, in the report's
// file if there is one, and status 1 if locks are mandatory, because otherwise the lack of a report would be unexplained.
// If no report is expected, only a program that offloads and whose runtime can never start the tool gets the line. A
// program that has forbidden itself system calls may be killed by any that this makes, and gets none of these.
#include <dlfcn.h>
#include <link.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <pinning/watcher.hpp>
#include <span>
#include <string>
#include <string_view>

#include "../../base/setting.hpp"
#include "../output.hpp"
#include "../report.hpp"
#include "../trace.hpp"
#include "tool.hpp"

namespace pinning::tool::openmp {

std::string runtime() {
  std::string found;
  auto const look = [](dl_phdr_info* object, std::size_t, void* into) {
    std::string const file(object->dlpi_name);
    std::string const name = file.substr(file.find_last_of('/') + 1);
    auto& best = *static_cast<std::string*>(into);
    for (char const* const known : {"libgomp.so", "libomp.so", "libomp-", "libiomp5.so", "libomptarget.so"}) {
      if (name.starts_with(known) && !may_offload(best)) best = name;
    }
    return 0;
  };
  dl_iterate_phdr(look, &found);
  return found;
}

bool may_offload(std::string const& runtime) { return runtime.starts_with("libomptarget"); }

namespace {

// From the environment at program start.
bool is_the_run;         // this is the process of `pinning run`, which has executed the program
bool wanted, mandatory;  // wanted: a report, a trace or mandatory locks

bool has_had_children() {
  rusage used;
  return getrusage(RUSAGE_CHILDREN, &used) == 0 && used.ru_minflt != 0;
}

// The dynamic symbols' names of an object, of those that it defines and those that it needs.
std::string_view symbol_names(dl_phdr_info const& object) {
  std::uintptr_t at = 0;
  std::size_t size = 0;
  for (auto const& segment : std::span(object.dlpi_phdr, object.dlpi_phnum)) {
    if (segment.p_type != PT_DYNAMIC) continue;
    auto const* entry = reinterpret_cast<ElfW(Dyn) const*>(object.dlpi_addr + segment.p_vaddr);
    for (; entry->d_tag != DT_NULL; ++entry) {
      if (entry->d_tag == DT_STRTAB) at = entry->d_un.d_ptr;
      if (entry->d_tag == DT_STRSZ) size = entry->d_un.d_val;
    }
  }
  if (at == 0) return {};
  if (at < object.dlpi_addr) at += object.dlpi_addr;  // the loader relocates this entry, but not in the kernel's vDSO
  return {reinterpret_cast<char const*>(at), size};
}

// Whether an object was compiled by GCC with target constructs, which call GOMP_target_ext and its like.
bool has_gcc_targets() {
  auto const look = [](dl_phdr_info* object, std::size_t, void*) {
    std::string_view const file(object->dlpi_name);
    if (file.substr(file.find_last_of('/') + 1).starts_with("libgomp")) return 0;  // which defines them
    return symbol_names(*object).find("GOMP_target") != std::string_view::npos ? 1 : 0;
  };
  return dl_iterate_phdr(look, nullptr) != 0;
}

// Why the runtime can never start the tool; empty if it can.
std::string obstacle(std::string const& runtime) {
  if (std::strcmp(setting("OMP_TOOL"), "disabled") == 0) return "OMP_TOOL=disabled forbids it; unset that";
  Dl_info first, self;
  void* const asked = dlsym(RTLD_DEFAULT, "ompt_start_tool");
  if (asked != nullptr && dladdr(asked, &first) != 0 && dladdr(&is_the_run, &self) != 0 &&
      first.dli_fbase != self.dli_fbase) {
    return std::string(first.dli_fname) + " has an OMPT tool of its own, and a runtime takes only one";
  }
  if (runtime.starts_with("libgomp")) {
    return runtime + ", GCC's OpenMP runtime, has no OMPT interface; compile with clang, or another compiler whose "
                     "runtime has it";
  }
  return "";
}

// Why nothing was staged or locked.
std::string reason(std::string const& runtime, bool is_of_openmp) {
  bool const cuda = !this_process.copies && dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD) != nullptr;
  if (cuda && !is_of_openmp) return "CUDA's copies were looked for in no way that is seen";
  std::string const first = is_of_openmp ? "" : "CUDA's driver was not opened, and ";
  if (runtime.empty()) return first + "no OpenMP runtime is loaded";
  if (std::string const why = obstacle(runtime); !why.empty()) return first + why;
  return first + runtime + " has not started: the program has come to no OpenMP construct";
}

// Write the files that were asked for, unless a process of this run has. False if the report goes to no file.
bool write_files(std::string const& text) {
  char const *const report = setting("PINNING_REPORT"), *const trace = setting("PINNING_TRACE");
  bool const in_file = *report != 0 && std::strcmp(report, "-") != 0;
  if (in_file && !Output::is_written(report)) write_report(report, "pinning: " + text + "\n");
  if (auto const file = *trace != 0 && !Output::is_written(trace) ? Trace::open(trace) : nullptr) file->finish();
  return in_file;
}

void at_exit(int status, void*) {
  if (Tool::was_started() || !this_process.began || this_process.sandboxed || !(is_the_run || wanted)) return;
  std::string const loaded = runtime();
  if (this_process.copies && !mandatory && !may_offload(loaded)) return;  // a CUDA program, which gets its own report
  bool const has_files = is_the_run && !this_process.copies;
  // A shell, or another program that starts programs: those report for themselves.
  if (loaded.empty() && (!is_the_run || has_had_children())) {
    if (has_files) write_files("nothing was staged or locked in this process; those that it has started report for themselves");
    return;
  }
  bool const offloads = may_offload(loaded) || (loaded.starts_with("libgomp") && has_gcc_targets());
  if (!wanted) {
    if (!offloads || obstacle(loaded).empty()) return;
    if (process_watcher().was_asked()) return;  // it locks memory itself, with these hooks
  }
  std::string const text = std::string(this_process.copies ? "nothing was locked: " : "nothing was staged or locked: ") +
                           reason(loaded, offloads || mandatory);
  bool const in_file = has_files && write_files(text);
  if (!in_file || offloads || mandatory) say(text);
  if (!mandatory || status != 0) return;
  std::fflush(nullptr);
  _exit(1);
}

[[gnu::constructor]] void begin() {
  Output::standard_error();
  is_the_run = std::atoi(setting("PINNING_RUN")) == getpid();
  mandatory = strcasecmp(setting("PINNING_LOCK_MAPPED"), "mandatory") == 0;
  wanted = mandatory || *setting("PINNING_REPORT") != 0 || *setting("PINNING_TRACE") != 0;
  if (is_the_run || wanted) on_exit(at_exit, nullptr);
}

}  // namespace

}  // namespace pinning::tool::openmp
