// SPDX-License-Identifier: Apache-2.0
// A vendor's shared library, loaded at run time.
#pragma once

#include <sys/types.h>

#include <initializer_list>
#include <string>

namespace pinning {

/// Never unloaded: what a driver has locked outlives whoever asked for it.
class Library {
 public:
  /// The first of these names that is loaded already, else the first that can be. Throws Unavailable, which ends in
  /// `remedy`.
  Library(std::initializer_list<std::string> names, char const* remedy);

  /// Throws Unavailable where the library lacks it.
  template <class Function>
  void get(char const* name, Function*& function) const {
    function = reinterpret_cast<Function*>(find(name));
  }

 private:
  void* find(char const* name) const;

  void* handle_ = nullptr;
  std::string name_;
};

/// The process in which a driver was started: its state does not survive a fork.
class Started {
 public:
  explicit Started(char const* driver);
  /// Throws Unavailable in a child of that process.
  void check() const;

 private:
  char const* driver_;
  pid_t process_;
};

}  // namespace pinning
