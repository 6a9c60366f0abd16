// SPDX-License-Identifier: Apache-2.0
// Which map belongs to an OpenMP device.
#pragma once

#include <pinning/pinning.h>

#include <atomic>
#include <mutex>
#include <string>

namespace pinning::tool::openmp {

/// A lock for one device of a vendor is valid for all its devices, and for no other vendor's.
enum class Vendor { host, cuda, hsa };
constexpr int vendors = 3;

class Device {
 public:
  Device(Vendor vendor, std::string name) : vendor_(vendor), name_(std::move(name)) {}

  Vendor vendor() const noexcept { return vendor_; }
  std::string const& name() const noexcept { return name_; }

  /// The device's map, opened at first use; null if that fails, which is reported once.
  pinning_map* map();

 private:
  Vendor const vendor_;
  std::string const name_;
  std::once_flag opened_;
  std::atomic<pinning_map*> map_ = nullptr;
};

/// The devices that the runtime has initialised, by OpenMP device number. Read at each operation, so without a mutex.
class Devices {
 public:
  /// `type` is the processor's name, such as "sm_90", "gfx90a" or "generic-64bit", or a target triple.
  void add(int number, char const* type);
  /// Null for the host, and for devices of unsupported vendors.
  Device* find(int number) const noexcept {
    return is_listed(number) ? devices_[number].load(std::memory_order_acquire) : nullptr;
  }
  bool contains(int number) const noexcept {
    return is_listed(number) && added_[number].load(std::memory_order_acquire);
  }

 private:
  static constexpr int most = 256;
  static bool is_listed(int number) noexcept { return 0 <= number && number < most; }

  std::mutex mutex_;
  std::atomic<Device*> devices_[most] = {};  // never destroyed: transfers continue until exit
  std::atomic<bool> added_[most] = {};
  unsigned next_[vendors] = {};
};

}  // namespace pinning::tool::openmp
