// SPDX-License-Identifier: Apache-2.0
// Libraries release the GIL before they copy, and waiting for it here could hang the program. So the stack is written
// as by faulthandler: by a function that takes no lock, counts no reference and allocates nothing. The frames do not
// change meanwhile, because this thread runs them. CPython 3.11 and 3.12 export the function.
#include "script_line.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <string_view>

namespace pinning::tool::cuda {

namespace {

template <class Function>
Function* python_function(char const* name) noexcept {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

/// Its output for this thread, innermost call first: lines such as '  File "/home/train.py", line 42 in step'.
std::string stack() {
  static auto* const thread = python_function<void*()>("PyGILState_GetThisThreadState");
  static auto* const dump = python_function<void(int, void*)>("_Py_DumpTraceback");
  void* const state = thread != nullptr && dump != nullptr ? thread() : nullptr;
  int ends[2];
  if (state == nullptr || pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return "";
  dump(ends[1], state);  // what does not fit into the pipe is dropped
  close(ends[1]);
  std::string text(16384, 0);
  ssize_t const size = read(ends[0], text.data(), text.size());
  close(ends[0]);
  text.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  return text;
}

bool is_of_a_library(std::string_view file) noexcept {
  return file.starts_with('<') || file.find("/site-packages/") != file.npos || file.find("/dist-packages/") != file.npos ||
         file.find("/lib/python3") != file.npos;
}

}  // namespace

std::string python_line() {
  constexpr std::string_view before = "  File \"", between = "\", line ";
  std::string const text = stack();
  std::string found;
  for (std::size_t at = text.find(before); at != text.npos; at = text.find(before, at + 1)) {
    std::size_t const end = text.find('\n', at), file_end = text.find(between, at);
    if (end == text.npos || file_end > end) break;
    std::size_t const file_start = at + before.size(), line_start = file_end + between.size();
    std::string_view const file = std::string_view(text).substr(file_start, file_end - file_start);
    bool const is_own = !is_of_a_library(file);
    if (found.empty() || is_own) {
      found = file.substr(file.rfind('/') + 1);
      found += ":" + text.substr(line_start, end - line_start);
    }
    if (is_own) break;
  }
  return found;
}

}  // namespace pinning::tool::cuda
