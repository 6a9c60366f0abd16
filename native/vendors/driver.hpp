// SPDX-License-Identifier: Apache-2.0
// A vendor's library after it has been started: its calls, with error checks.
#pragma once

#include <pinning/errors.hpp>
#include <type_traits>
#include <utility>

#include "../base/library.hpp"

namespace pinning {

/// The symbol without its version suffix, such as "_v2"; for errors.
template <class Signature>
std::string name_of(Function<Signature> const& function) {
  std::string const symbol = function.symbol;
  return symbol.substr(0, symbol.find("_v"));
}

class VendorDriver {
 public:
  explicit VendorDriver(char const* name) : started_(name) {}
  virtual ~VendorDriver() = default;

  Started const& started() const noexcept { return started_; }

  /// Describes a call that has returned this error code.
  virtual VendorCall failed(std::string function, int code, std::string advice = "") const = 0;
  /// Throws unless the code is 0.
  template <class Signature>
  void check_code(Function<Signature> const& function, int code, std::string advice = "") const {
    if (code != 0) refuse(failed(name_of(function), code, std::move(advice)));
  }
  /// Calls the function; throws like `check_code`.
  template <class... Parameters>
  void check(Function<int(Parameters...)> const& function, std::type_identity_t<Parameters>... arguments) const {
    if (int const code = function(arguments...); code != 0) refuse(failed(name_of(function), code));
  }

 private:
  [[noreturn]] virtual void refuse(VendorCall call) const { throw VendorError(std::move(call)); }

  Started const started_;
};

}  // namespace pinning
