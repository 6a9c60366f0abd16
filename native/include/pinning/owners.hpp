// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <pagetable/page_table.hpp>
#include <vector>

namespace pinning {

/// What is stored with each range: its device and its allocation, both only as identities.
struct Owner {
  std::atomic<void const*> device;
  std::atomic<void*> allocation;
};

/// Which allocation holds an address, for all devices of the process. Lookups take no lock and write nothing; `enter`
/// and `leave` are for one thread at a time, without concurrent lookups.
///
/// Two devices may use one address for different memory: then the range of the second is in a further layer, and a
/// lookup that names no device finds the first. Almost always there is one layer.
class Owners {
 public:
  using Address = pagetable::Address;

  /// Add [start, start + size), unless some of it already belongs to the same device: then that region is returned, and
  /// nothing has changed. Throws std::bad_alloc, also with nothing changed.
  std::optional<pagetable::Region> enter(Address start, std::uint64_t size, void const* device, void* allocation) {
    for (auto const& layer : layers_) {
      for (pagetable::Region const& taken : layer->overlapping(start, size)) {
        if (layer->value(taken.id).device.load(std::memory_order_relaxed) == device) return taken;
      }
    }
    for (std::size_t at = 0;; ++at) {
      // Without the large reservations: programs may run under `ulimit -v`, and a lookup is a few nanoseconds anyway.
      if (at == layers_.size()) layers_.push_back(std::make_unique<Layer>(false));
      try {
        layers_[at]->insert(start, size, [&](Owner& owner) {
          owner.device.store(device, std::memory_order_release);
          owner.allocation.store(allocation, std::memory_order_release);
        });
        return std::nullopt;
      } catch (pagetable::Overlap const&) {  // with another device's range
      }
    }
  }

  void leave(Address start, void const* allocation) {
    for (auto const& layer : layers_) {
      auto const region = layer->find(start);
      if (!region || region->start != start) continue;
      if (layer->value(region->id).allocation.load(std::memory_order_relaxed) != allocation) continue;
      layer->remove(start);
      return;
    }
  }

  /// The allocation that holds the byte at `address`, on `device` or, if that is null, on any; null if there is none.
  void* find(Address address, void const* device = nullptr) const noexcept {
    for (auto const& layer : layers_) {
      void const* on = nullptr;
      void* allocation = nullptr;
      auto const found = layer->find(address, [&](Owner const& owner) {
        on = owner.device.load(std::memory_order_acquire);
        allocation = owner.allocation.load(std::memory_order_acquire);
      });
      if (found && (device == nullptr || on == device)) return allocation;
    }
    return nullptr;
  }

 private:
  using Layer = pagetable::PageTable<Owner>;
  std::vector<std::unique_ptr<Layer>> layers_;
};

}  // namespace pinning
