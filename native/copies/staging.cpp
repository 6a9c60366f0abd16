// SPDX-License-Identifier: Apache-2.0
// Which ring a copy uses, and the vendor's calls of a copy.
//
// Note [Staging design]
//
// A copy of pageable memory has two halves: host threads copy between the caller's memory and pinned blocks, and the
// device copies between the blocks and its own memory, by DMA. Both must run concurrently at full speed, the caller
// must continue once the copy is submitted, and no queue may wait for work submitted later. Three structures do that:
//
//   Ring      pinned blocks of one queue, preceded by three 32-bit words: `begun` and `taken`, which the device
//             writes, and `moved`, which the threads write. They count the ring's chunks, of all its copies, and wrap.
//   Transfer  one copy: chunks of up to 8 MiB, each with its block, and the ranges of host memory or of a file.
//   CopyThreads  the threads of the process. They poll the words of all rings in turn, take a slice (256 KiB) of any
//             chunk that can move, and publish `moved` once all chunks before it are moved too.
//
// Steps of a copy to the device:
//
//   staged()        finds a ring: the queue's own, an idle one or a new one. If there is no memory for one, it returns
//                   null, and the caller lets the vendor copy. Cuts the copy into chunks and places them in the ring,
//                   behind those of the previous copy.
//   threads.begin() enters the transfer. From here on its slices move as the words allow.
//   submit()        puts everything into the vendor's queue at once, for each chunk: wait until `moved` shows that the
//                   block is full, copy the block, write to `taken` that the block is free again.
//
// To the host the halves change places: the device fills blocks that `moved` shows to be free, and threads empty blocks
// that `taken` shows to be full; the last wait delays later work of the queue until the caller's memory is written.
// A copy within the host and a signal for another vendor's queue are transfers without blocks, only words.
//
// Rationale:
//
//   - The threads call no driver, take only a spinlock, for some hundred instructions, and need no GIL. So what a queue
//     waits for happens whatever the program's threads hold; docs/design/staging.md proves that no queue hangs.
//   - begin() precedes submit(): a queue that reaches a wait finds a thread at work on it, even if the caller is stuck
//     in the submission of the next chunk.
//   - A ring belongs to one queue at a time, because its words are written in the order of one queue. The next queue
//     that copies gets an idle ring, so a program with many queues needs only as many rings as concurrent copies.
//   - Chunks are small at both ends of a copy, so that little is waited for there, and large in between, because a
//     device idles for some microseconds between two.
//   - A submission that fails half way may leave the words inconsistent. retire() waits for the submitted part and
//     marks the ring as broken: no other copy uses it.
//   - A Staged that is destroyed early abandons its transfer: its chunks count as moved, so that the queue gets past
//     them, and no thread touches the caller's memory any more.
//   - An idle ring is kept: to free it, a vendor blocks all submissions until its device is idle.
//
// Locks: a device's `mutex_` guards its list of rings and the bytes that they use; the threads' lock is taken while it
// is held. No vendor is called while either is held.
#include <algorithm>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <pinning/budget.hpp>
#include <pinning/process.hpp>
#include <pinning/staging.hpp>

#include "../base/processors.hpp"
#include "copy_threads.hpp"

namespace pinning {

namespace {

constexpr std::uint64_t least_ring = 4 << 20, least_share = 16 << 20, least_chunk = 1 << 20;

/// The device's side of a copy: one range, or the parts of a batch.
class DeviceSide {
 public:
  DeviceSide(Ring const& ring, Address address) : shift_(ring.memory.shift), address_(address) {}

  /// For a batch, whose parts are cut at the borders of chunks. If the queue has a kernel, that reads the list of
  /// parts: keep this until no device reads it any more.
  DeviceSide(Ring const& ring, VendorQueue& queue, Transfer const& transfer, std::vector<CopyItem> const& parts,
             PartLists& lists)
      : shift_(ring.memory.shift) {
    if (queue.moves_parts()) list_.emplace(lists);
    std::uint64_t const most = list_ ? PartLists::part_bytes : ~std::uint64_t{0};
    auto const add = [&](CopyItem const& part) { list_ ? list_->push_back(part) : parts_.push_back(part); };
    std::size_t chunk = 0, count = 0;
    std::uint64_t at = 0;
    first_.push_back(0);
    for (CopyItem part : parts) {
      while (part.size > 0) {
        Chunk const& in = transfer.chunks[chunk];
        std::uint64_t const size = std::min({part.size, in.at + in.size - at, most});
        auto const block = reinterpret_cast<Address>(in.block) + shift_ + (at - in.at);
        bool const to_device = transfer.way == Way::to_device;
        add({to_device ? part.dst : block, to_device ? block : part.src, size});
        ++count;
        at += size;
        part = {part.dst + size, part.src + size, part.size - size};
        if (at == in.at + in.size) ++chunk, first_.push_back(count);
      }
    }
  }
  DeviceSide(DeviceSide const&) = delete;

  void copy(VendorQueue& queue, Transfer const& transfer, std::size_t index) const {
    Chunk const& chunk = transfer.chunks[index];
    Address const block = reinterpret_cast<Address>(chunk.block) + shift_, device_ptr = address_ + chunk.at;
    bool const to_device = transfer.way == Way::to_device;
    if (first_.empty()) return queue.copy(to_device ? device_ptr : block, to_device ? block : device_ptr, chunk.size);
    std::size_t const first = first_[index], count = first_[index + 1] - first;
    if (!list_) return queue.copy_batch(parts_.data() + first, count);
    queue.move_parts(list_->device_ptr() + first * sizeof(CopyItem), count, chunk.size, list_->aligned());
  }

 private:
  Address const shift_;  // from a block's host address to its device address
  Address const address_ = 0;
  std::optional<PartList> list_;
  std::vector<CopyItem> parts_;         // if there is no list
  std::vector<std::size_t> first_;  // the index of each chunk's first part, and the end
};

/// Delays each write until it is known whether a wait follows, because a vendor does both in one call.
class Calls {
 public:
  explicit Calls(VendorQueue& queue) : queue_(queue) {}
  void write(Address word, std::uint32_t value) {
    flush();
    word_ = word, value_ = value;
  }
  void wait(Address word, std::uint32_t value) {
    if (word_ == 0) return queue_.wait_value(word, value);
    queue_.write_then_wait(std::exchange(word_, 0), value_, word, value);
  }
  void copy(DeviceSide const& device_side, Transfer const& transfer, std::size_t chunk) {
    flush();
    device_side.copy(queue_, transfer, chunk);
  }
  void flush() {
    if (word_ != 0) queue_.write_value(std::exchange(word_, 0), value_);
  }

 private:
  VendorQueue& queue_;
  Address word_ = 0;
  std::uint32_t value_ = 0;
};

/// Submit all that the queue does for a transfer.
void submit(VendorQueue& queue, Transfer const& transfer, DeviceSide const& device_side) {
  Ring const& ring = *transfer.ring;
  Calls calls(queue);
  std::uint32_t number = transfer.base;
  switch (transfer.way) {
    case Way::to_device:
      if (!transfer.early) calls.write(ring.begun(), transfer.end());
      for (std::size_t i = 0; i < transfer.chunks.size(); ++i) {
        calls.wait(ring.moved(), ++number);
        calls.copy(device_side, transfer, i);
        calls.write(ring.taken(), number);
      }
      break;
    case Way::to_host:
      for (std::size_t i = 0; i < transfer.chunks.size(); ++i) {
        std::uint32_t const needs = transfer.chunks[i].needs;
        bool const free = reached(ring.words().moved.load(std::memory_order_acquire), needs);
        if (!free) calls.wait(ring.moved(), needs);
        calls.copy(device_side, transfer, i);
        calls.write(ring.taken(), ++number);
      }
      break;
    case Way::in_host:
    case Way::signal:
      calls.write(ring.taken(), ++number);
      break;
    case Way::wait:
    case Way::fresh:
      break;
  }
  if (transfer.way == Way::to_host || transfer.way == Way::in_host || transfer.way == Way::wait) {
    calls.wait(ring.moved(), transfer.base + static_cast<std::uint32_t>(transfer.chunks.size()));
    calls.write(ring.taken(), transfer.end());
  }
  calls.flush();
}

/// Cut a copy into chunks: small at both ends, so that little is waited for there, and large in between, because
/// between two chunks a device idles for as long as it takes to copy some 200 KiB. Large ones end where a huge page does:
/// see Transfer::slice_at.
void cut(Transfer& transfer, std::uint64_t size, std::uint64_t most) {
  std::uint64_t const least = std::min(least_chunk, most);
  for (std::uint64_t at = 0; at < size;) {
    std::uint64_t const left = size - at, wanted = std::min(at, left / 2) / slice_bytes * slice_bytes;
    std::uint64_t chunk = left <= least ? left : std::clamp(wanted, least, most);
    std::uint64_t const beyond = (transfer.ranges[0].host + at + chunk) % huge_page;
    if (!transfer.file && chunk > least && chunk < left && chunk >= huge_page + beyond) chunk -= beyond;
    transfer.chunks.push_back({at, chunk, nullptr, 0, false, chunk});
    at += chunk;
  }
}

/// Find out by a sample whether the memory that a copy writes is new: no page fault has populated it yet.
void find_new_memory(Transfer& transfer, std::uint64_t huge_from) noexcept {
  constexpr unsigned sample = 5;
  std::uint64_t const size = transfer.size();
  unsigned absent = 0;
  for (unsigned i = 1; i <= sample; ++i) {
    transfer.for_each_range(size / (sample + 1) * i, 1, [&](Range const& range, auto inside, auto, auto) {
      if (is_absent(reinterpret_cast<char*>(range.host + inside))) ++absent;
    });
  }
  transfer.faults = absent > sample / 2;
  bool const huge = transfer.faults && transfer.ranges.size() == 2 && huge_from > 0 && size >= huge_from;
  if (huge) advise_huge_pages(reinterpret_cast<char*>(transfer.ranges[0].host), size);
}

/// What a queue copies to or from: a range, or the parts of a batch.
struct DeviceRange {
  Address address = 0;
  std::vector<CopyItem> const* parts = nullptr;
};

class Rings;

class Handle : public Staged {
 public:
  Handle(CopyThreads& threads, std::shared_ptr<Transfer> transfer)
      : threads(threads), transfer(std::move(transfer)) {}
  ~Handle() override {
    if (!here()) return;
    threads.abandon(*transfer);
    transfer->file = {};  // closed now, not when the thread that moved the last bytes drops its reference
  }
  bool moved() const noexcept override { return threads.moved(*transfer); }
  bool arrived() const noexcept override;
  void give() noexcept override {
    if (here() && transfer->way == Way::signal) threads.give(*transfer);
  }
  /// False in a forked child, which does not have these threads.
  bool here() const noexcept { return CopyThreads::known() == &threads; }

  CopyThreads& threads;
  std::shared_ptr<Transfer> const transfer;
  std::unique_ptr<DeviceSide> device_side;  // null if the vendor's queue calls a function instead
  Rings* rings = nullptr;                   // null as well in that case
  std::uint64_t era = 0;                    // of the transfer's ring
};

/// A context of a device: its handle, and its number, by which it differs from a later one with this handle.
struct Context {
  std::uintptr_t handle = 0;  // 0: unknown
  std::uint64_t number = 0;
};

class Rings : public Staging {
 public:
  Rings(VendorDevice& device, std::uint32_t worn, Context context = {})
      : device_(device), context_(context), worn_(worn), lists_(device) {}

  std::unique_ptr<Staged> copy(VendorQueue& queue, Toward toward, std::vector<CopyItem> const& parts, bool early,
                               StagingLimits const& limits) override;
  PartLists& lists() noexcept override { return lists_; }
  std::shared_ptr<PartList const> zero() override;
  std::unique_ptr<Staged> copy_file(VendorQueue& queue, FileEnd file, Memory memory,
                                    std::vector<FilePart> const& parts, bool early, StagingLimits const& limits) override;
  std::unique_ptr<Staged> signal(VendorQueue& queue) override;
  std::unique_ptr<Staged> wait(VendorQueue& queue, Staged& signal) override;
  std::unique_ptr<Block> borrow(std::uint64_t at_most, StagingLimits const& limits) override;
  std::uint64_t trim() override;
  /// Forget rings whose context is gone, surely so if another one has its handle by now.
  void forget_gone(CopyThreads& threads, Context other = {});
  /// Whether the device has passed a transfer. Its ring may be in use by another queue by now, begun anew, or freed.
  bool passed(Transfer const& transfer, std::uint64_t era) noexcept {
    std::lock_guard const guard(mutex_);
    auto const its = [&](auto const& ring) { return ring.get() == transfer.ring && ring->era == era; };
    auto const ring = std::ranges::find_if(rings_, its);
    if (ring == rings_.end() || (*ring)->memory.ptr == 0) return true;
    return reached((*ring)->words().taken.load(std::memory_order_acquire), transfer.end());
  }
  /// Whether these rings are for the same device in the same context.
  bool is_of(VendorDevice& device, Context context) const {
    return context.handle != 0 && context.number == context_.number && device.name() == device_.name();
  }
  bool empty() noexcept override {
    std::lock_guard const guard(mutex_);
    return bytes_ == 0;
  }
  bool has_room(StagingLimits const& limits) noexcept override {
    std::lock_guard const guard(mutex_);
    auto const may_have = [&](auto const& ring) { return !ring->broken && ring->size != 0 && ring->size <= limits.ring_bytes; };
    return std::any_of(rings_.begin(), rings_.end(), may_have) || size_of_new(limits) != 0;
  }

 private:
  enum class Blocks : bool { no, yes };

  /// A use of a ring; the ring is not idle meanwhile.
  class Use {
   public:
    Use(Rings& rings, Ring& ring) : rings_(rings), ring_(&ring) {}
    Use(Use&& other) noexcept : rings_(other.rings_), ring_(std::exchange(other.ring_, nullptr)) {}
    ~Use() {
      if (ring_ == nullptr) return;
      std::lock_guard const guard(rings_.mutex_);
      --ring_->users;
    }
    Ring& operator*() const noexcept { return *ring_; }
    Ring* operator->() const noexcept { return ring_; }

   private:
    Rings& rings_;
    Ring* ring_;
  };
  struct Borrowed : Block {
    explicit Borrowed(Use taken) : use(std::move(taken)) {}
    Use use;
  };

  bool is_of_one_allocation(Address first, Address second);
  std::unique_ptr<Staged> copy_parts(VendorQueue& queue, std::shared_ptr<Transfer> transfer, std::uint64_t size,
                                     std::vector<CopyItem> const& parts, StagingLimits const& limits);
  std::unique_ptr<Staged> staged(VendorQueue& queue, std::shared_ptr<Transfer> transfer, DeviceRange const& range,
                                 Blocks blocks, StagingLimits const& limits);
  template <class Function>
  static std::unique_ptr<Staged> called(VendorQueue& queue, std::shared_ptr<Transfer> transfer, Function);
  std::optional<Use> ring_for(CopyThreads& threads, std::uint64_t queue, Blocks blocks, StagingLimits const& limits);
  std::optional<Use> make_ring(CopyThreads& threads, std::uint64_t queue, Blocks blocks, StagingLimits const& limits);
  std::uint64_t size_of_new(StagingLimits const& limits) const noexcept;
  /// (mutex_) How much of an idle ring to use: less if more rings are busy, so that their blocks stay in the caches.
  std::uint64_t usable(CopyThreads& threads, Ring const& ring) {
    auto const works = [&](auto const& each) { return &*each != &ring && !each->broken && !idle(threads, *each); };
    auto const others = static_cast<std::uint64_t>(std::ranges::count_if(rings_, works));
    return std::min(ring.size, std::max(ring.size / (1 + others), least_share));
  }
  bool idle(CopyThreads& threads, Ring const& ring) { return ring.users == 0 && !ring.broken && threads.idle(ring); }
  void retire(CopyThreads& threads, Ring& ring, VendorQueue& queue, Transfer& transfer) noexcept;

  VendorDevice& device_;
  Context const context_;
  std::uint32_t const worn_;  // chunks after which an idle ring counts from 0 again
  PartLists lists_;
  std::mutex mutex_;
  std::weak_ptr<PartList const> zero_;
  std::vector<std::unique_ptr<Ring>> rings_;
  std::uint64_t bytes_ = 0;  // of all their blocks
};

std::atomic<std::uint64_t> eras{0};

bool Handle::arrived() const noexcept { return moved() && (rings == nullptr || rings->passed(*transfer, era)); }

std::shared_ptr<PartList const> Rings::zero() {
  {
    std::lock_guard const guard(mutex_);
    if (auto list = zero_.lock()) return list;
  }
  auto list = std::make_shared<PartList>(lists_);
  list->push_back({});
  std::lock_guard const guard(mutex_);
  zero_ = list;
  return list;
}

std::unique_ptr<Staged> Rings::copy(VendorQueue& queue, Toward toward, std::vector<CopyItem> const& parts, bool early,
                                    StagingLimits const& limits) {
  auto transfer = std::make_shared<Transfer>();
  transfer->way = toward == Toward::device ? Way::to_device : toward == Toward::host ? Way::to_host : Way::in_host;
  transfer->early = early;
  std::uint64_t at = 0;
  transfer->ranges.reserve(parts.size() + 1);
  for (CopyItem const& part : parts) {
    transfer->ranges.push_back({at, toward == Toward::device ? part.src : part.dst, part.src});
    at += part.size;
  }
  auto const overlaps = [](CopyItem const& each) { return each.dst < each.src + each.size && each.src < each.dst + each.size; };
  if (toward == Toward::in_host && std::ranges::any_of(parts, overlaps)) transfer->slice = at;  // moved as by memmove
  return copy_parts(queue, std::move(transfer), at, parts, limits);
}

std::unique_ptr<Staged> Rings::copy_file(VendorQueue& queue, FileEnd file, Memory memory,
                                         std::vector<FilePart> const& parts, bool early, StagingLimits const& limits) {
  auto transfer = std::make_shared<Transfer>();
  bool const in_host = memory == Memory::host;
  transfer->way = in_host ? Way::in_host : file.writes ? Way::to_host : Way::to_device;
  transfer->early = early;
  if (file.file->is_past_cache()) transfer->slice = direct_slice_bytes, transfer->most_at_work = direct_threads;
  std::uint64_t at = 0;
  std::vector<CopyItem> stretches;  // of memory: parts scattered in the file are often contiguous there
  Address CopyItem::* const end = file.writes ? &CopyItem::src : &CopyItem::dst;
  for (FilePart const& each : parts) {
    CopyItem const part{each.dst, each.src, each.size};
    bool const adjoins = !stretches.empty() && part.*end == stretches.back().*end + stretches.back().size;
    if (adjoins && (!file.writes || in_host || is_of_one_allocation(stretches.back().src, part.src))) {
      stretches.back().size += part.size;
    } else {
      stretches.push_back(part);
    }
    Range const range{at, in_host || file.writes ? part.dst : part.src, in_host ? part.src : 0, each.row, each.pitch};
    Range const* const last = transfer->ranges.empty() ? nullptr : &transfer->ranges.back();
    bool const follows = last != nullptr && range.host == last->host + (at - last->at) &&
                         (!in_host || range.from == last->from + (at - last->at)) &&
                         range.row == FileRows::endless && last->row == FileRows::endless;
    if (!follows) transfer->ranges.push_back(range);
    at += part.size;
  }
  transfer->file = std::move(file);
  if (in_host) transfer->file.memory = File::Memory::of_caller;
  return copy_parts(queue, std::move(transfer), at, stretches, limits);
}

/// Whether two addresses are in one allocation of the device: a driver copies none of two allocations at once.
bool Rings::is_of_one_allocation(Address first, Address second) {
  auto const memory = device_.memory_info(second);
  return memory && memory->base <= first;
}

/// Submit a transfer of `size` bytes whose host ranges are set; `parts` has the device's ranges.
std::unique_ptr<Staged> Rings::copy_parts(VendorQueue& queue, std::shared_ptr<Transfer> transfer, std::uint64_t size,
                                          std::vector<CopyItem> const& parts, StagingLimits const& limits) {
  transfer->ranges.push_back({size, 0, 0});
  transfer->chunks.push_back({0, size, nullptr, 0, false, size});  // cut when the size of its ring is known
  if (transfer->way != Way::in_host) {
    Address const device_ptr = transfer->way == Way::to_device ? parts[0].dst : parts[0].src;
    DeviceRange const range{device_ptr, parts.size() > 1 ? &parts : nullptr};
    return staged(queue, std::move(transfer), range, Blocks::yes, limits);
  }
  if (auto handle = staged(queue, transfer, {}, Blocks::no, limits)) return handle;
  return called(queue, std::move(transfer), [](CopyThreads& threads, Transfer& copy) { threads.copy_in_call(copy); });
}

std::unique_ptr<Staged> Rings::signal(VendorQueue& queue) {
  auto transfer = std::make_shared<Transfer>();
  transfer->way = Way::signal;
  transfer->chunks.push_back({0, 0, nullptr, 0, false, 1});
  if (auto handle = staged(queue, transfer, {}, Blocks::no, {})) return handle;
  return called(queue, std::move(transfer), [](CopyThreads& threads, Transfer& signal) { threads.give(signal); });
}

std::unique_ptr<Staged> Rings::wait(VendorQueue& queue, Staged& signal) {
  auto transfer = std::make_shared<Transfer>();
  transfer->way = Way::wait;
  transfer->chunks.push_back({0, 0, nullptr, 0, false, 1});
  Handle& from = static_cast<Handle&>(signal);
  if (!from.threads.wait_for(*from.transfer, transfer)) return nullptr;
  if (auto handle = staged(queue, transfer, {}, Blocks::no, {})) return handle;
  return called(queue, std::move(transfer), [](CopyThreads& threads, Transfer& wait) { threads.wait_in_call(wait); });
}

/// Let the queue call a function in its turn, if it cannot wait for words or there is no pinned memory for them.
template <class Function>
std::unique_ptr<Staged> Rings::called(VendorQueue& queue, std::shared_ptr<Transfer> transfer, Function) {
  struct Call {
    CopyThreads& threads;
    std::shared_ptr<Transfer> transfer;
  };
  CopyThreads& threads = CopyThreads::get(StagingLimits().threads);
  auto handle = std::make_unique<Handle>(threads, transfer);
  auto call = std::make_unique<Call>(threads, std::move(transfer));
  queue.call([](void* argument) {
    std::unique_ptr<Call> const call(static_cast<Call*>(argument));
    Function()(call->threads, *call->transfer);
  }, call.get());
  call.release();  // the call deletes it
  return handle;
}

std::unique_ptr<Staged> Rings::staged(VendorQueue& queue, std::shared_ptr<Transfer> transfer, DeviceRange const& range,
                                      Blocks blocks, StagingLimits const& limits) {
  if (!queue.waits_for_values()) return nullptr;
  CopyThreads& threads = CopyThreads::get(limits.threads);
  if (!threads.any()) return nullptr;
  std::optional<Use> const ring = ring_for(threads, queue.number, blocks, limits);
  if (!ring) return nullptr;
  Ring& through = **ring;
  transfer->base = through.next.load();
  Placement placement = through.placement;
  if (blocks == Blocks::yes) {
    std::uint64_t const size = transfer->chunks[0].size;
    transfer->chunks.clear();
    std::uint64_t const most = std::min({limits.chunk_bytes, std::max(size / 32, limits.chunk_bytes / 2),
                                         std::max(placement.size() / 4, slice_bytes)});
    cut(*transfer, size, std::max(most / slice_bytes, std::uint64_t{1}) * slice_bytes);
    if (transfer->way == Way::to_device) placement.rewind();
    for (std::uint32_t i = 0; i < transfer->chunks.size(); ++i) {
      placement.place(transfer->chunks[i], transfer->base + i);
      // Lines written with non-temporal stores would be slower to fill on the next lap.
      if (size > placement.size()) transfer->chunks[i].cold = false;
    }
  }
  transfer->count = static_cast<std::uint32_t>(transfer->chunks.size());
  if (transfer->to_host() || transfer->way == Way::wait) ++transfer->count;
  auto handle = std::make_unique<Handle>(threads, transfer);
  handle->rings = this;
  handle->era = through.era;  // fixed as long as the ring is in use
  handle->device_side = range.parts == nullptr
                            ? std::make_unique<DeviceSide>(through, range.address)
                            : std::make_unique<DeviceSide>(through, queue, *transfer, *range.parts, lists());
  if (transfer->may_populate()) find_new_memory(*transfer, limits.huge_from);
  threads.begin(transfer, through, limits);
  through.placement = std::move(placement);
  try {
    submit(queue, *transfer, *handle->device_side);
  } catch (...) {
    retire(threads, through, queue, *transfer);
    throw;
  }
  return handle;
}

/// The queue's own ring, an idle one, or a new one.
std::optional<Rings::Use> Rings::ring_for(CopyThreads& threads, std::uint64_t queue, Blocks blocks,
                                          StagingLimits const& limits) {
  bool const large = blocks == Blocks::yes;
  {
    std::lock_guard const guard(mutex_);
    Ring* best = nullptr;
    for (auto const& each : rings_) {
      Ring& ring = *each;
      if (ring.broken || (large && (ring.size == 0 || ring.size > limits.ring_bytes))) continue;
      bool const free = idle(threads, ring);
      if (!free && (ring.queue != queue || ring.next.load() >= worn_ || ring.users > 0)) continue;
      bool const mine = ring.queue == queue;
      if (best == nullptr || mine || (best->queue != queue && (large ? ring.size > best->size : ring.size < best->size))) {
        best = &ring;
      }
      if (mine && !free) break;
    }
    if (best != nullptr) {
      if (idle(threads, *best)) {
        if (best->next.load() >= worn_) {
          best->next = best->published = 0;
          best->era = ++eras;
          new (reinterpret_cast<void*>(best->memory.ptr)) Words;
        }
        best->placement.renew(usable(threads, *best), best->next.load());
      }
      best->queue = queue;
      ++best->users;
      return Use(*this, *best);
    }
  }
  return make_ring(threads, queue, blocks, limits);
}

/// The bytes of a new ring's blocks; 0 if there is no room for any. (mutex_)
std::uint64_t Rings::size_of_new(StagingLimits const& limits) const noexcept {
  std::uint64_t const room = limits.staging_bytes - std::min(limits.staging_bytes, bytes_);
  std::uint64_t size = limits.ring_bytes;
  while (size > room / 4 && size / 2 >= std::min(limits.ring_bytes, least_ring)) size /= 2;  // leaves some for other queues
  return size > room || size < slice_bytes ? 0 : size;
}

/// A new ring, if there is memory for it.
std::optional<Rings::Use> Rings::make_ring(CopyThreads& threads, std::uint64_t queue, Blocks blocks,
                                           StagingLimits const& limits) {
  auto ring = std::make_unique<Ring>();
  ring->device = this;
  if (blocks == Blocks::yes) {
    std::lock_guard const guard(mutex_);
    ring->size = size_of_new(limits);
    if (ring->size == 0) return std::nullopt;
    bytes_ += ring->size;
  }
  auto const refused = [&] {
    std::lock_guard const guard(mutex_);
    bytes_ -= ring->size;
  };
  try {
    ring->memory = process_budget().with_room(Ring::front + ring->size,
                                              [&] { return RingMemory::make(device_, threads, ring->size); });
  } catch (std::exception const&) {  // most likely a limit on locked memory: copies continue without
    refused();
    return std::nullopt;
  } catch (...) {
    refused();
    throw;
  }
  new (reinterpret_cast<void*>(ring->memory.ptr)) Words;
  ring->placement = Placement(ring->blocks(), ring->size);
  ring->queue = queue;
  ring->era = ++eras;
  ring->users = 1;
  std::lock_guard const guard(mutex_);
  rings_.push_back(std::move(ring));
  return Use(*this, *rings_.back());
}

/// Retire a ring whose words may stay inconsistent after a failed submission: no copy uses it again, and it is freed if
/// the vendor reports the queue as done. The submitted part completes, because the threads still serve it.
void Rings::retire(CopyThreads& threads, Ring& ring, VendorQueue& queue, Transfer& transfer) noexcept {
  {
    std::lock_guard const guard(mutex_);
    ring.broken = true;
  }
  bool over = false;
  try {
    queue.synchronize();
    over = queue.done();
  } catch (...) {  // the first error says more
  }
  threads.abandon(transfer);
  if (!over || !threads.left(ring)) return;
  RingMemory memory;
  {
    std::lock_guard const guard(mutex_);  // in `passed`, others read its words
    memory = std::exchange(ring.memory, {});
  }
  bool freed = true;
  try {
    memory.free(device_);
  } catch (...) {
    freed = false;
  }
  std::lock_guard const guard(mutex_);
  if (freed) bytes_ -= ring.size;
  else ring.memory = memory;
}

std::unique_ptr<Staging::Block> Rings::borrow(std::uint64_t at_most, StagingLimits const& limits) {
  std::optional<Use> ring = ring_for(CopyThreads::get(limits.threads), 0, Blocks::yes, limits);
  if (!ring) return nullptr;
  auto block = std::make_unique<Borrowed>(std::move(*ring));
  block->ptr = reinterpret_cast<Address>(block->use->blocks());
  block->size = std::min(at_most, block->use->size);
  return block;
}

std::uint64_t Rings::trim() {
  std::uint64_t freed = lists_.trim();
  CopyThreads* const threads = CopyThreads::known();
  if (threads != nullptr) forget_gone(*threads);  // below, their words are read
  std::vector<std::unique_ptr<Ring>> out;
  {
    std::lock_guard const guard(mutex_);
    if (threads == nullptr) return freed;
    out.reserve(rings_.size());
    for (auto& ring : rings_) {
      if (ring->users == 0 && (ring->memory.ptr == 0 || idle(*threads, *ring))) out.push_back(std::move(ring));
    }
    std::erase(rings_, nullptr);
  }
  std::exception_ptr refused;  // such as for a lost device
  for (auto& ring : out) {
    if (ring->memory.ptr == 0) continue;
    try {
      ring->memory.free(device_);
    } catch (...) {
      refused = std::current_exception();
      std::lock_guard const guard(mutex_);
      rings_.push_back(std::move(ring));
      continue;
    }
    freed += ring->size;
    std::lock_guard const guard(mutex_);
    bytes_ -= ring->size;
  }
  if (refused) std::rethrow_exception(refused);
  return freed;
}

/// Rings that are being checked count as in use.
void Rings::forget_gone(CopyThreads& threads, Context other) {
  bool const all = other.handle != 0 && other.handle == context_.handle && other.number != context_.number;
  std::vector<Ring*> asked, gone;
  std::vector<std::unique_ptr<Ring>> out;
  {
    std::lock_guard const guard(mutex_);
    asked.reserve(rings_.size()), gone.reserve(rings_.size()), out.reserve(rings_.size());
    for (auto const& ring : rings_) {
      if (ring->memory.ptr != 0 && ring->users == 0 && threads.left(*ring)) ++ring->users, asked.push_back(ring.get());
    }
  }
  for (Ring* const ring : asked) {
    try {
      if (all || !device_.memory_info(ring->memory.ptr)) gone.push_back(ring);
    } catch (std::exception const&) {  // a lost device: the ring stays
    }
  }
  {
    std::lock_guard const guard(mutex_);
    for (Ring* const ring : asked) --ring->users;
    for (auto& ring : rings_) {
      if (std::ranges::find(gone, ring.get()) == gone.end()) continue;
      bytes_ -= ring->size;
      out.push_back(std::move(ring));
    }
    std::erase(rings_, nullptr);
  }
  for (auto const& ring : out) ring->memory.forget();
}

/// The staging of each device.
struct Known {
  std::mutex mutex;
  std::map<VendorDevice*, std::shared_ptr<Rings>> of;

  /// In a forked child: begin with none, because threads of the parent may have been changing this.
  void restart() noexcept {
    CopyThreads::after_fork();
    new (this) Known;
  }
};
using TheKnown = Only<Known, Subsystem::copies>;

std::vector<std::shared_ptr<Rings>> all_known() {
  std::vector<std::shared_ptr<Rings>> all;
  if (Known* const known = TheKnown::if_made()) {
    std::lock_guard const guard(known->mutex);
    for (auto const& [device, rings] : known->of) all.push_back(rings);
  }
  return all;
}

Known& known() {
  return TheKnown::get([] { return std::make_unique<Known>(); });
}

std::atomic<std::uint64_t> queue_numbers{0};

}  // namespace

// Measured on two machines with 16 processors: to the device twelve threads reach 50 GB/s and eight 46, to the host
// eight reach 49 and twelve less. The other processors are left to the program. More than 20 threads serve one GPU
// worse, and only several at once gain: with 64 processors, 20 threads reach 48 GB/s in and 51 out for one GPU and 64
// and 69 for four; 48 reach 46 and 43, and 98 and 104. With 32 processors, 20 threads read a file for two GPUs at 41 to
// 57 GB/s and 28 at 54 to 76, while more than 20 move memory for two no faster: see CopyThreads::most_one_way.
StagingLimits::StagingLimits() noexcept {
  unsigned const count = usable_processors_once();
  constexpr unsigned most_of_one = 20, left_free = 4;
  threads = count == 1 ? 1 : std::clamp(std::max(count * 3 / 4, count - std::min(count, left_free)), 2u, 48u);
  threads_to_device = std::min(threads, most_of_one);
  threads_to_host = std::min(threads_to_device, std::max(3u, count / 2));
}

std::uint64_t next_queue_number() noexcept { return ++queue_numbers; }

Staging& staging(VendorDevice& device) {
  Known& all = known();
  {
    std::lock_guard const guard(all.mutex);
    if (auto const found = all.of.find(&device); found != all.of.end()) return *found->second;
  }
  Context context;
  try {
    if (device.is_permanent()) context = {device.native_context(), device.context_number()};
  } catch (std::exception const&) {  // such as in a forked child
  }
  std::shared_ptr<Rings> rings;
  {
    std::lock_guard const guard(all.mutex);
    for (auto const& [known, other] : all.of) {
      if (other->is_of(device, context)) rings = other;
    }
    if (rings == nullptr) rings = std::make_shared<Rings>(device, worn_chunks, context);
    rings = all.of.try_emplace(&device, rings).first->second;
  }
  // Contexts of other devices may be gone.
  if (CopyThreads* const threads = CopyThreads::known()) {
    for (auto const& each : all_known()) each->forget_gone(*threads, context);
  }
  return *rings;
}

void forget_staging(VendorDevice& device) noexcept {
  Known* const all = TheKnown::if_made();
  if (all == nullptr) return;
  std::lock_guard const guard(all->mutex);
  all->of.erase(&device);
}

std::uint64_t trim_stagings() {
  std::uint64_t freed = 0;
  std::exception_ptr refused;
  for (auto const& each : all_known()) {
    try {
      freed += each->trim();
    } catch (...) {  // the memory of other devices can still be given back
      refused = std::current_exception();
    }
  }
  if (refused) std::rethrow_exception(refused);
  return freed;
}

std::unique_ptr<Staging> make_staging(VendorDevice& device, std::uint32_t worn) {
  known();  // so that a forked child forgets the threads
  return std::make_unique<Rings>(device, worn);
}

}  // namespace pinning
