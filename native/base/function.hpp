// SPDX-License-Identifier: Apache-2.0
// A function of a vendor's library. Without includes, so that tests can compare it with any vendor's header.
#pragma once

namespace pinning {

template <class Signature>
struct Function;

/// A function by its symbol; null until it is looked up, and if the library lacks it.
template <class Result, class... Parameters>
struct Function<Result(Parameters...)> {
  char const* symbol = nullptr;
  Result (*call)(Parameters...) = nullptr;

  explicit operator bool() const noexcept { return call != nullptr; }
  Result operator()(Parameters... arguments) const { return call(arguments...); }
};

}  // namespace pinning

// Expansions of the lists of a vendor's functions and constants.
#define PINNING_MEMBER(name, result, ...) Function<result(__VA_ARGS__)> name{#name};
#define PINNING_CONSTANT(name, value) name = value,
#define PINNING_LOOK_UP(name, ...) library_.get(this->name);
#define PINNING_LOOK_UP_IF_THERE(name, ...) library_.get_if_there(this->name);
