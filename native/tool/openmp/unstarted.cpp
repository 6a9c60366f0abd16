// SPDX-License-Identifier: Apache-2.0
// If the tool was loaded into a program and no runtime has started it: one line at exit, and status 1 if locks are
// mandatory, because otherwise the lack of a report would be unexplained. If no report is expected, only a program that
// offloads and whose runtime can never start the tool gets the line. A program that has forbidden itself system calls
// may be killed by any that this makes, and gets neither.
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

#include "../output.hpp"
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

char const* variable(char const* name) {
  char const* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

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
  if (std::strcmp(variable("OMP_TOOL"), "disabled") == 0) return "OMP_TOOL=disabled forbids it; unset that";
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

// Why the tool was not started although nothing prevents it.
std::string no_occasion(std::string const& runtime) {
  if (!runtime.empty()) return runtime + " has not started: the program has come to no OpenMP construct";
  bool const cuda = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD) != nullptr && !this_process.copies;
  return std::string("no OpenMP runtime is loaded") + (cuda ? ", and CUDA's copies were looked for in no way that is seen" : "");
}

void at_exit(int status, void*) {
  if (Tool::was_started() || !this_process.began || this_process.sandboxed || !(is_the_run || wanted)) return;
  std::string const loaded = runtime();
  if (this_process.copies && !mandatory && !may_offload(loaded)) return;  // a CUDA program, which gets its own report
  // A shell, or another program that starts programs: those report for themselves.
  if (loaded.empty() && (!is_the_run || has_had_children())) return;
  std::string const why = obstacle(loaded);
  if (!wanted) {
    bool const offloads = may_offload(loaded) || (loaded.starts_with("libgomp") && has_gcc_targets());
    if (why.empty() || !offloads) return;
    if (process_watcher().was_asked()) return;  // it locks memory itself, with these hooks
  }
  say("the tool was never started, and nothing was locked: " + (why.empty() ? no_occasion(loaded) : why));
  if (!mandatory || status != 0) return;
  std::fflush(nullptr);
  _exit(1);
}

[[gnu::constructor]] void begin() {
  Output::standard_error();
  is_the_run = std::atoi(variable("PINNING_RUN")) == getpid();
  mandatory = strcasecmp(variable("PINNING_LOCK_MAPPED"), "mandatory") == 0;
  wanted = mandatory || *variable("PINNING_REPORT") != 0 || *variable("PINNING_TRACE") != 0;
  if (is_the_run || wanted) on_exit(at_exit, nullptr);
}

}  // namespace

}  // namespace pinning::tool::openmp
