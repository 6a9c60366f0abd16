// SPDX-License-Identifier: Apache-2.0
// One lane for each stream of others, as long as anything uses it: so a copy knows what earlier copies in it may write.
//
// Locks: `AdoptedLanes::mutex_` guards the list, and is held during no call of a vendor.
#include <memory>
#include <mutex>
#include <pinning/lane.hpp>
#include <pinning/process.hpp>
#include <vector>

namespace pinning {

namespace {

class AdoptedLanes {
 public:
  /// The lane of this stream; `fresh`, which may be null, if there is none.
  std::shared_ptr<Lane> get(VendorDevice& device, std::uintptr_t stream, std::shared_ptr<Lane> const& fresh) {
    StreamKey const key = key_of_stream(device, stream);
    std::lock_guard const guard(mutex_);
    std::erase_if(lanes_, [](Entry const& each) { return each.lane.expired(); });
    for (Entry const& each : lanes_) {
      if (each.device != &device || each.key != key) continue;
      if (auto lane = each.lane.lock()) return lane;
    }
    if (fresh != nullptr) lanes_.push_back({&device, key, fresh});
    return fresh;
  }

 private:
  struct Entry {
    VendorDevice* device;
    StreamKey key;
    std::weak_ptr<Lane> lane;
  };

  std::mutex mutex_;
  std::vector<Entry> lanes_;
};

}  // namespace

std::shared_ptr<Lane> Lane::adopt(VendorDevice& device, std::uintptr_t stream) {
  AdoptedLanes& lanes = Only<AdoptedLanes, Subsystem::queues>::get([] { return std::make_unique<AdoptedLanes>(); });
  if (auto known = lanes.get(device, stream, nullptr)) return known;
  auto const lane = std::make_shared<std::shared_ptr<Lane>>(make(device, device.adopt_queue(stream), true, true));
  // Not one that events share: a stream may be gone before them, and another one have its handle.
  return lanes.get(device, stream, std::shared_ptr<Lane>(lane, lane->get()));
}

}  // namespace pinning
