// SPDX-License-Identifier: Apache-2.0
// The loader of Unified Runtime, libur_loader.so.0, loaded and initialised.
#pragma once

#include <vector>

#include "../driver.hpp"
#include "ur_abi.hpp"

namespace pinning::ur {

enum { PINNING_UR_CONSTANTS(PINNING_CONSTANT) };

class Loader : public Functions, public VendorDriver {
 public:
  /// Loads and initialises the loader once; tries again after a failure. Never torn down: other libraries of the
  /// process, such as SYCL's, share it, and locks made through it may outlive their users. Throws Unavailable, also in
  /// a fork: the header allows a fork to initialise the loader again, but the drivers below it keep threads.
  static Loader& get();

  VendorCall failed(std::string function, int code, std::string advice = "") const override;

  /// Returns the handles that a function lists through its last three arguments.
  template <class Signature, class... Arguments>
  std::vector<void*> list(Function<Signature> const& function, Arguments... arguments) const {
    std::uint32_t count = 0;
    check(function, arguments..., 0, nullptr, &count);
    std::vector<void*> handles(count);
    if (count != 0) check(function, arguments..., count, handles.data(), nullptr);
    return handles;
  }

  /// Returns the value of a property, which a function stores through its last three arguments.
  template <class Value, class Signature, class... Arguments>
  Value ask(Function<Signature> const& function, Arguments... arguments) const {
    Value value{};
    check(function, arguments..., sizeof value, &value, nullptr);
    return value;
  }

  std::vector<void*> platforms(void* adapter) const;

  std::string const& name() const noexcept { return library_.name(); }
  /// The path of its file.
  std::string path() const;

 private:
  Loader();
  /// Throws VendorAlreadyPinned if the code means that another owner has pinned some of the memory.
  [[noreturn]] void refuse(VendorCall call) const override;

  Library library_;
  bool platforms_of_several_ = false;  // urPlatformGet takes an array of adapters, as in 2025.2 and before
};

}  // namespace pinning::ur
