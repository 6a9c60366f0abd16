// SPDX-License-Identifier: Apache-2.0
// The HSA runtime, loaded and started, and the agents and pools that it finds.
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
  /// Loads and starts the runtime once; tries again after a failure. Never shut down: locks may outlive their users.
  static Runtime& get();

  VendorCall failed(std::string function, int code, std::string advice = "") const override;

  VendorLibrary library() const;
  /// Reports if the process has loaded a second HSA runtime, as some packages bring their own.
  std::vector<std::string> problems() const;

  /// The index of a GPU's agent; nothing if `agent` is no GPU.
  std::optional<int> gpu(Handle agent) const noexcept;
  /// The agent's pools of this granularity that allow allocation; those for kernel arguments last.
  std::vector<Handle> pools(Handle agent, std::uint32_t grain) const;

  Handle cpu{};
  std::vector<Handle> gpus;
  Handle coherent_pool{};  // of the host; memory locked to it is coherent

 private:
  Runtime();
  void find_machine();

  Library library_;
};

}  // namespace pinning::hsa
