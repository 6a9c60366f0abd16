// SPDX-License-Identifier: Apache-2.0
#include "library.hpp"

#include <dlfcn.h>

#include <pinning/errors.hpp>

namespace pinning {

Library::Library(std::initializer_list<std::string> names, char const* remedy) {
  std::string reasons;
  for (int const already : {RTLD_NOLOAD, 0}) {
    for (auto const& name : names) {
      handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | already);
      name_ = name;
      if (handle_ != nullptr) return;
      char const* const error = dlerror();
      std::string const reason = error != nullptr ? error : "unknown";
      // The first name's error is reported, those of further names only if these exist but cannot be loaded.
      bool const absent = reason.starts_with(name + ":") && reason.ends_with("No such file or directory");
      if (already == 0 && (reasons.empty() || !absent)) reasons += (reasons.empty() ? "" : "; ") + reason;
    }
  }
  throw Unavailable(*names.begin() + " cannot be loaded (" + reasons + "): " + remedy);
}

void* Library::find_if_there(char const* name) const noexcept { return dlsym(handle_, name); }

void* Library::find(char const* name) const {
  void* const found = find_if_there(name);
  if (found == nullptr) throw Unavailable(name_ + " has no " + name + ": it is too old, install a newer one");
  return found;
}

void Started::refuse() const {
  throw Unavailable("process " + std::to_string(getpid()) + " is a fork of process " + std::to_string(process_) +
                    ", which uses " + driver_ + ", so " + driver_ +
                    " does not work in it: start it by exec, as multiprocessing's 'spawn' method does, or fork before "
                    "the first use of " +
                    driver_);
}

}  // namespace pinning
