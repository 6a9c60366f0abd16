// SPDX-License-Identifier: Apache-2.0
// Many copies at once, sorted by the path that each part of them takes.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "copy_plan.hpp"
#include "part_lists.hpp"

namespace pinning {

/// What is to be copied: `count` items, of `sizes[i * size_step]` bytes each.
struct Items {
  Address const* dsts;
  Address const* srcs;
  std::uint64_t const* sizes;
  std::uint64_t size_step;
  std::uint64_t count;

  /// A range that contains all sources and destinations.
  Span span() const noexcept {
    Address first = ~Address{0}, last = 0;
    std::uint64_t largest = 0;
    for (std::uint64_t i = 0; i < count; ++i) {
      first = std::min({first, dsts[i], srcs[i]});
      last = std::max({last, dsts[i], srcs[i]});
      largest = std::max(largest, sizes[i * size_step]);
    }
    return {first, last + std::min(largest, ~Address{0} - last)};
  }
};

/// The parts of a batch, by what moves them.
struct Parts {
  explicit Parts(PartLists& lists) : by_kernel(lists) {}

  PartList by_kernel;                 // addresses of the device, also for locked memory of the host
  std::vector<CopyItem> by_engine;    // the copy engines: addresses as given
  std::vector<CopyItem> to_device;    // from pageable memory
  std::vector<CopyItem> to_host;      // into pageable memory
  std::vector<CopyItem> on_host;      // between two ends of the host
  Address written = ~Address{0}, written_end = 0;  // a range in which all destinations lie
  std::uint64_t bytes = 0;                         // of all items
};

inline std::uint64_t bytes_of(std::vector<CopyItem> const& parts) noexcept {
  std::uint64_t bytes = 0;
  for (CopyItem const& part : parts) bytes += part.size;
  return bytes;
}

/// Sorts items into parts: splits them where either end crosses the border of a lock, and chooses what moves each.
class Sorter {
 public:
  /// `largest_by_kernel`: bytes of an item; larger ones go by the copy engines. 0: the device has no kernel.
  Sorter(MemoryRanges& dst_ranges, MemoryRanges& src_ranges, std::uint64_t largest_by_kernel, Parts& parts)
      : dst_ranges_(dst_ranges), src_ranges_(src_ranges), largest_by_kernel_(largest_by_kernel), parts_(parts) {}

  /// Sort items. Throws InvalidRange, which names the item, for an invalid range or one that runs past the end of an
  /// allocation of the device, or what the vendor throws; items sorted before stay.
  void sort(Items const& items) {
    largest_by_kernel_ > 0 ? parts_.by_kernel.reserve(items.count) : parts_.by_engine.reserve(items.count);
    std::uint64_t const small = std::min(largest_by_kernel_, PartLists::part_bytes);
    for (std::uint64_t i = 0; i < items.count; ++i) {
      CopyItem const item{items.dsts[i], items.srcs[i], items.sizes[i * items.size_step]};
      // Most items are wholly in the ranges of the item before: a pool of the host and one of the device.
      if (item.size - 1 < small && direct_ && dst_.holds(item.dst, item.size) && src_.holds(item.src, item.size)) {
        enter(item);
        parts_.by_kernel.push_back({dst_.device_ptr_of(item.dst), src_.device_ptr_of(item.src), item.size});
      } else {
        sort(i, item);
      }
    }
  }

 private:
  using Kind = MemoryRange::Kind;
  static constexpr std::uint64_t most_bytes = ~std::uint64_t{0} >> 1;  // so that no sum of sizes wraps

  void enter(CopyItem const& item) noexcept {
    parts_.written = std::min(parts_.written, item.dst);
    parts_.written_end = std::max(parts_.written_end, item.dst + item.size);
    parts_.bytes += item.size;
  }

  void sort(std::uint64_t index, CopyItem item) {
    auto const refuse = [index](std::string const& why) {
      throw InvalidRange("item " + std::to_string(index) + " of the batch: " + why);
    };
    if (item.size == 0) refuse("its size is 0; a copy needs at least 1 byte");
    if (item.size > most_bytes - std::min(most_bytes, parts_.bytes)) {
      refuse("its size is " + std::to_string(item.size) + "; all items together have fewer than 2^63 bytes");
    }
    for (auto const& [name, ptr] : {std::pair("dst", item.dst), std::pair("src", item.src)}) {
      if (ptr == 0 || ptr + (item.size - 1) < ptr) {
        refuse(std::string(name) + " " + describe(ptr, item.size) + " is no range of memory");
      }
    }
    enter(item);
    bool const small = item.size <= largest_by_kernel_;
    look(item);
    for (Kind dst_before = dst_.kind, src_before = src_.kind; item.size > 0; dst_before = dst_.kind, src_before = src_.kind) {
      look(item);
      if (leaves_device(dst_before, dst_.kind) || leaves_device(src_before, src_.kind)) {
        refuse("it runs past the end of an allocation of the device's, with " + std::to_string(item.size) +
               " bytes left at dst " + describe(item.dst, item.size) + ", src " + describe(item.src, item.size));
      }
      std::uint64_t size = std::min({item.size, dst_.end - item.dst, src_.end - item.src});
      if (dst_.kind != Kind::device && src_.kind != Kind::device) {
        parts_.on_host.push_back({item.dst, item.src, size});
      } else if (dst_.kind == Kind::pageable) {
        parts_.to_host.push_back({item.dst, item.src, size});
      } else if (src_.kind == Kind::pageable) {
        parts_.to_device.push_back({item.dst, item.src, size});
      } else if (small) {
        size = std::min(size, PartLists::part_bytes);
        parts_.by_kernel.push_back({dst_.device_ptr_of(item.dst), src_.device_ptr_of(item.src), size});
      } else {
        size = std::min({size, dst_.bytes_from(item.dst), src_.bytes_from(item.src)});
        parts_.by_engine.push_back({item.dst, item.src, size});
      }
      item = {item.dst + size, item.src + size, item.size - size};
    }
  }

  /// Whether memory of a device ends or begins here. What a lock divides, as it can on the host's own device, goes on.
  static bool leaves_device(Kind before, Kind now) noexcept {
    return before != now && before != Kind::locked && now != Kind::locked;
  }

  /// Set `dst_` and `src_` to the ranges of the item's first bytes.
  void look(CopyItem const& item) {
    if (dst_.holds(item.dst) && src_.holds(item.src)) return;
    if (!dst_.holds(item.dst)) dst_ = dst_ranges_.of(item.dst, item.dst + item.size);
    if (!src_.holds(item.src)) src_ = src_ranges_.of(item.src, item.src + item.size);
    bool const one_is_device = dst_.kind == Kind::device || src_.kind == Kind::device;
    direct_ = one_is_device && dst_.kind != Kind::pageable && src_.kind != Kind::pageable;
  }

  MemoryRanges& dst_ranges_;
  MemoryRanges& src_ranges_;
  std::uint64_t const largest_by_kernel_;
  Parts& parts_;
  MemoryRange dst_{}, src_{};  // where the last part was
  bool direct_ = false;  // whether the device can access both
};

/// What moves locked memory: always the copy engines, always the kernel, or, `automatic`, the kernel for small items if
/// there are several and it would not be late.
enum class Engine : std::uint8_t { automatic, copy, kernel };

/// Many copies as one.
class Batch final : public CopyOperation {
 public:
  /// Look up, check and sort all items for a queue of `device`; `map` is one of `device`. Throws InvalidRange, which
  /// names an item, Unsupported, or what the vendor throws.
  PINNING_API Batch(PinnedMap& map, VendorDevice& device, VendorQueue& queue, Items const& items, Engine engine,
                    CopyLimits const& limits);
  PINNING_API ~Batch() override;

  PINNING_API CopyPath path() const noexcept override;
  PINNING_API Reason reason() const noexcept override;
  Span written() const noexcept override { return {parts_.written, parts_.written_end}; }
  Parts const& parts() const noexcept { return parts_; }
  /// Throw InvalidRange if memory of the host that our threads would touch is not mapped.
  PINNING_API void check_mapped() const;
  /// Number of pageable parts that were left to the vendor's own copy, for which `submit` has waited.
  std::uint64_t plain() const noexcept { return plain_; }

 private:
  void submit_all(VendorQueue& queue) override;
  void stage(VendorQueue& queue, Staging::Toward toward, std::vector<CopyItem> const& parts);
  void count() const noexcept;

  Staging& staging_;
  CopyLimits const limits_;
  MemoryRanges dst_ranges_, src_ranges_;
  Parts parts_;
  std::vector<std::unique_ptr<Staged>> staged_;  // destroyed first
  std::uint64_t plain_ = 0, plain_bytes_ = 0;
  Reason plain_reason_ = Reason::small;
};

}  // namespace pinning
