// SPDX-License-Identifier: Apache-2.0
// The HSA runtime, loaded and started, and what it finds in the machine.
#pragma once

#include <optional>
#include <pinning/vendor.hpp>
#include <vector>

#include "../driver.hpp"
#include "hsa_abi.hpp"

namespace pinning::hsa {

enum { PINNING_HSA_CONSTANTS(PINNING_CONSTANT) };

class Runtime : public Functions, public VendorDriver {
 public:
  /// Loaded and started once; again after each failure. Never shut down: what it locked may outlive us.
  static Runtime& get();

  VendorCall failed(std::string function, int code, std::string advice = "") const override;

  VendorLibrary library() const;
  /// That a package has brought a runtime of its own into this process.
  std::vector<std::string> problems() const;

  /// Index of a GPU's agent; nothing where it is none.
  std::optional<int> gpu(Handle agent) const noexcept;
  /// The agent's pools of this grain from which memory may be allocated; those for kernel arguments last.
  std::vector<Handle> pools(Handle agent, std::uint32_t grain) const;

  Handle cpu{};
  std::vector<Handle> gpus;
  Handle coherent_pool{};  // of the host, to which memory is locked so that it is coherent

 private:
  Runtime();
  void find_machine();

  Library library_;
};

}  // namespace pinning::hsa
