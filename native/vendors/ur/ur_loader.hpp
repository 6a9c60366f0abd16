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
  /// Loaded and initialised once; again after each failure. Never torn down: other libraries of the process, SYCL's
  /// among them, share it, and what was locked through it may outlive any owner of ours. Throws Unavailable, in a fork
  /// of the process too: the header lets a fork initialise the loader anew, but the drivers below it keep threads.
  static Loader& get();

  VendorCall failed(std::string function, int code, std::string advice = "") const override;

  /// The handles that a function lists through its last three arguments.
  template <class Signature, class... Arguments>
  std::vector<void*> list(Function<Signature> const& function, Arguments... arguments) const {
    std::uint32_t count = 0;
    check(function, arguments..., 0, nullptr, &count);
    std::vector<void*> handles(count);
    if (count != 0) check(function, arguments..., count, handles.data(), nullptr);
    return handles;
  }

  /// What a function tells of a property through its last three arguments.
  template <class Value, class Signature, class... Arguments>
  Value ask(Function<Signature> const& function, Arguments... arguments) const {
    Value value{};
    check(function, arguments..., sizeof value, &value, nullptr);
    return value;
  }

  std::vector<void*> platforms(void* adapter) const;

  std::string const& name() const noexcept { return library_.name(); }
  /// Its file.
  std::string path() const;

 private:
  Loader();
  /// Throws VendorAlreadyPinned where the code says that another owner has some of the memory.
  [[noreturn]] void refuse(VendorCall call) const override;

  Library library_;
  bool platforms_of_several_ = false;  // urPlatformGet is that of 2025.2 and before: it takes an array of adapters
};

inline void* pointer(Address address) noexcept { return reinterpret_cast<void*>(address); }

}  // namespace pinning::ur
