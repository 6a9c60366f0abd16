// SPDX-License-Identifier: Apache-2.0
// A vendor's shared library, loaded at run time.
#pragma once

#include <unistd.h>

#include <initializer_list>
#include <pinning/process.hpp>
#include <string>

#include "function.hpp"

namespace pinning {

/// Never unloaded: memory that a driver has locked may outlive the driver's user.
class Library {
 public:
  /// Open the first of these names that is already loaded, otherwise the first that can be. Throws Unavailable, whose
  /// text ends in `remedy`.
  Library(std::initializer_list<std::string> names, char const* remedy);

  /// Look up a function. Throws Unavailable if the library lacks it.
  template <class Signature>
  void get(Function<Signature>& function) const {
    function.call = reinterpret_cast<Signature*>(find(function.symbol));
  }
  /// The name by which it was loaded.
  std::string const& name() const noexcept { return name_; }
  /// The same, but null if the library lacks it.
  template <class Signature>
  void get_if_there(Function<Signature>& function) const noexcept {
    function.call = reinterpret_cast<Signature*>(find_if_there(function.symbol));
  }

 private:
  void* find(char const* name) const;
  void* find_if_there(char const* name) const noexcept;

  void* handle_ = nullptr;
  std::string name_;
};

/// The process in which a driver was started: its state does not survive a fork.
class Started {
 public:
  explicit Started(char const* driver) : driver_(driver) {}
  /// Whether this is a child of that process, in which the driver must not be called.
  bool is_parents() const noexcept { return pinning::is_parents(made_in_); }
  /// Throw Unavailable in such a child. It only reads a word, so hot paths may call it.
  void check() const {
    if (is_parents()) refuse();
  }

 private:
  [[noreturn]] void refuse() const;

  char const* driver_;
  pid_t const process_ = getpid();  // for the refusal
  unsigned const made_in_ = generation();
};

}  // namespace pinning
