// SPDX-License-Identifier: Apache-2.0
// A vendor's shared library, loaded at run time.
#pragma once

#include <unistd.h>

#include <initializer_list>
#include <string>

#include "function.hpp"
#include "process.hpp"

namespace pinning {

/// Never unloaded: what a driver has locked may outlive its user.
class Library {
 public:
  /// The first of these names that is loaded already, else the first that can be. Throws Unavailable, which ends in
  /// `remedy`.
  Library(std::initializer_list<std::string> names, char const* remedy);

  /// Throws Unavailable where the library lacks it.
  template <class Signature>
  void get(Function<Signature>& function) const {
    function.call = reinterpret_cast<Signature*>(find(function.symbol));
  }
  /// As it was loaded.
  std::string const& name() const noexcept { return name_; }
  /// Null where the library lacks it.
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
  bool elsewhere() const noexcept { return generation() != generation_; }
  /// Throws Unavailable there. It takes no longer than a look at a word, so that hot calls may ask.
  void check() const {
    if (elsewhere()) refuse();
  }

 private:
  [[noreturn]] void refuse() const;

  char const* driver_;
  pid_t const process_ = getpid();  // for the refusal
  unsigned const generation_ = generation();
};

}  // namespace pinning
