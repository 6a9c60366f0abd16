// SPDX-License-Identifier: Apache-2.0
// The devices that are native: each vendor's driver is loaded at first use.
#pragma once

#include <memory>
#include <pinning/vendor.hpp>
#include <string>

namespace pinning {

/// "cuda" as "cuda:0", "cuda:1" as it is. Throws InvalidArgument for what is no name of a device.
std::string full_name(char const* device);

std::unique_ptr<VendorDevice> make_cuda(unsigned index);
std::unique_ptr<VendorDevice> make_hip(unsigned index);
std::unique_ptr<VendorDevice> make_host(unsigned index);
std::unique_ptr<VendorDevice> make_hsa(unsigned index);
std::unique_ptr<VendorDevice> make_ur(unsigned index);

/// A device that locks and does nothing else.
class LockingDevice : public VendorDevice {
 public:
  explicit LockingDevice(std::string name) : name_(std::move(name)) {}
  std::string const& name() const noexcept override { return name_; }
  Address allocate(std::uint64_t, MemoryKind, bool) override { lacks("memory"); }
  void free(Address, MemoryKind) override { lacks("memory"); }
  std::optional<MemoryInfo> memory_info(Address) override { lacks("memory"); }
  void copy(Address, Address, std::uint64_t) override { lacks("copies"); }
  void synchronize() override { lacks("queues"); }
  std::unique_ptr<VendorQueue> make_queue() override { lacks("queues"); }
  std::unique_ptr<VendorQueue> adopt_queue(std::uintptr_t) override { lacks("queues"); }

 private:
  [[noreturn]] void lacks(char const* what) { throw Unsupported(name_ + " has no " + what + ": it only locks"); }

  std::string const name_;
};

}  // namespace pinning
