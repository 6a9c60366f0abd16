// SPDX-License-Identifier: Apache-2.0
// Submission of a batch: which vendor calls its parts become.
#include <pinning/batch.hpp>

#include "../base/mappings.hpp"

namespace pinning {

Batch::Batch(PinnedMap& map, VendorDevice& device, VendorQueue& queue, Items const& items, Engine engine,
             CopyLimits const& limits)
    : staging_(staging(device)),
      limits_(limits),
      dst_ranges_(map, device),
      src_ranges_(map, device),
      parts_(staging_.lists()) {
  std::uint64_t largest = 0;
  if (engine == Engine::kernel) {
    if (!queue.moves_parts()) {
      throw Unsupported(device.name() + " has no kernel that copies: leave the choice of the engine to the library");
    }
    largest = ~std::uint64_t{0};
  } else if (engine == Engine::automatic && items.count >= limits.kernel_from_items && queue.moves_parts() &&
             !queue.kernel_is_late(items.count)) {
    largest = limits.kernel_to_bytes;
  }
  Sorter(dst_ranges_, src_ranges_, largest, parts_).sort(items);
}

Batch::~Batch() = default;

CopyPath Batch::path() const noexcept {
  if (plain_ > 0) return CopyPath::plain;
  bool const direct = parts_.to_device.empty() && parts_.to_host.empty() && parts_.on_host.empty();
  return direct ? CopyPath::direct : CopyPath::staged;
}

Reason Batch::reason() const noexcept {
  if (plain_ > 0) return plain_reason_;
  if (!parts_.to_device.empty() || !parts_.to_host.empty()) return Reason::pageable;
  if (!parts_.on_host.empty()) return Reason::in_host;
  return parts_.by_kernel.size() > 0 ? Reason::kernel : Reason::engines;
}

namespace {

/// Ask about all at once, and only if something between may be missing about each.
void check_mapped(Address CopyItem::*end, std::initializer_list<std::vector<CopyItem> const*> lists) {
  Address first = ~Address{0}, last = 0;
  for (auto const* const parts : lists) {
    for (CopyItem const& part : *parts) first = std::min(first, part.*end), last = std::max(last, part.*end + part.size);
  }
  if (first >= last || all_mapped(first, last - first)) return;
  for (auto const* const parts : lists) {
    for (CopyItem const& part : *parts) {
      if (all_mapped(part.*end, part.size)) continue;
      throw InvalidRange("not mapped: some of " + describe(part.*end, part.size) + "; was its owner freed?");
    }
  }
}

}  // namespace

void Batch::check_mapped() const {
  pinning::check_mapped(&CopyItem::src, {&parts_.to_device, &parts_.on_host});
  pinning::check_mapped(&CopyItem::dst, {&parts_.to_host, &parts_.on_host});
}

void Batch::submit_all(VendorQueue& queue) {
  any_submitted_ = true;  // a call with several parts may submit some of them before it fails
  PartList const& by_kernel = parts_.by_kernel;
  if (by_kernel.size() > 0) {
    queue.move_parts(by_kernel.device_ptr(), by_kernel.size(), by_kernel.bytes(), by_kernel.aligned());
  }
  if (!parts_.by_engine.empty()) queue.copy_batch(parts_.by_engine.data(), parts_.by_engine.size());
  stage(queue, Staging::Toward::device, parts_.to_device);
  stage(queue, Staging::Toward::host, parts_.to_host);
  stage(queue, Staging::Toward::in_host, parts_.on_host);
  count();
}

/// Stage parts of pageable memory; a single small part to the host, or any without pinned blocks, goes to the vendor's own
/// copies. The vendor may read a source at once: one that goes to the device waits until the queue's earlier work, which may
/// write it, is complete.
void Batch::stage(VendorQueue& queue, Staging::Toward toward, std::vector<CopyItem> const& parts) {
  if (parts.empty()) return;
  if (toward != Staging::Toward::host || parts.size() > 1 || parts[0].size >= limits_.stage_to_host) {
    staged_.reserve(staged_.size() + 1);
    if (auto staged = staging_.copy(queue, toward, parts, false, limits_)) {
      staged_.push_back(std::move(staged));
      return;
    }
    plain_reason_ = queue.waits_for_values() ? Reason::no_room : Reason::no_values;
  }
  if (toward == Staging::Toward::device && queue.reads_early()) queue.synchronize();
  queue.copy_batch(parts.data(), parts.size());
  plain_ += parts.size();
  plain_bytes_ += bytes_of(parts);
}

/// Count bytes for `pinning top`. Direct bytes are the difference, so that their parts need not be visited.
void Batch::count() const noexcept {
  std::uint64_t const pageable = bytes_of(parts_.to_device) + bytes_of(parts_.to_host) + bytes_of(parts_.on_host);
  if (parts_.bytes != pageable) count_moved(CopyPath::direct, parts_.bytes - pageable);
  if (pageable != plain_bytes_) count_moved(CopyPath::staged, pageable - plain_bytes_);
  if (plain_bytes_ != 0) count_moved(CopyPath::plain, plain_bytes_);
}

}  // namespace pinning
