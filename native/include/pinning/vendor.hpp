// SPDX-License-Identifier: Apache-2.0
// What each vendor implements once, natively: its rules for locking, its memory, and the queues that copies go through.
// The map, the staging threads, the pools, the C interface and the OpenMP tool know vendors by these three classes only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "errors.hpp"
#include "locker.hpp"

namespace pinning {

/// What a device does not have, and what does instead.
class Unsupported : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Of an event that is another vendor's, where only one of `whose` can be waited for or compared.
[[noreturn]] inline void refuse_event(std::string const& whose) {
  throw Unsupported("this event is of another vendor than " + whose +
                    ": its queues wait only for their own, and only those times are compared; wait for the event itself");
}

/// Where an allocation is: pinned host memory; memory of one device; memory that moves as it is used.
enum class MemoryKind : std::uint8_t { host, device, shared };

/// What a device can do with memory of another: nothing, so that copies go through the host; copy it without the host; use
/// it as it is.
enum class MemoryConnection : std::uint8_t { none, migratable, unified };

/// An allocation or registration as its vendor knows it.
struct MemoryInfo {
  MemoryKind kind;
  Address base;        // the host's address of host memory, else the device's
  std::uint64_t size;
  int device;          // the index of the device that it is on; -1 where it is on none
};

/// One copy of a batch: an item, or what goes one way of it. The kernel reads them as they lie here.
struct CopyItem {
  Address dst, src;
  std::uint64_t size;  // bytes
};

/// A point in a queue, reached when all that was submitted before it is done. Its destructor gives it back to the
/// vendor, blocks for nothing, and may run on any thread.
class VendorEvent {
 public:
  virtual ~VendorEvent() = default;
  /// Throws VendorError where the work before it failed.
  virtual bool done() = 0;
  /// Blocks until it is reached. Throws as `done`.
  virtual void wait() = 0;
  /// The same, but where the vendor can it comes back with false after a moment, or when a signal has been handled.
  virtual bool wait_a_while() {
    wait();
    return true;
  }
  /// Seconds between two reached points of one vendor, by the device's clock where it has one.
  virtual double seconds_since(VendorEvent& earlier) = 0;
};

/// An event as the vendor's own class has it. Throws Unsupported where it is another's.
template <class Own>
Own& event_cast(VendorEvent& event, std::string const& whose) {
  if (auto* const own = dynamic_cast<Own*>(&event)) return *own;
  refuse_event(whose);
}

PINNING_API std::uint64_t next_queue_number() noexcept;

/// Work in order. Any thread may submit; the caller sees to it that no two do at once. `done`, `synchronize` and `handle`
/// may be called at any time. What is refused throws VendorError, and then nothing of that call was submitted.
class VendorQueue {
 public:
  /// Of no other queue of the process, not even one that is gone.
  std::uint64_t const number = next_queue_number();

  /// Closes it.
  virtual ~VendorQueue() = default;

  /// The vendor's own handle, such as a cudaStream_t; 0 where there is none.
  virtual std::uintptr_t handle() const noexcept = 0;

  /// Where an end is pageable host memory, it may block until that has been read or written.
  virtual void copy(Address dst, Address src, std::uint64_t size) = 0;
  virtual void copy_2d(Address dst, std::uint64_t dst_pitch, Address src, std::uint64_t src_pitch, std::uint64_t width,
                       std::uint64_t height) = 0;
  /// `copy` of each part, by one call where the vendor has one for all. No two parts may share a byte that one writes.
  virtual void copy_batch(CopyItem const* parts, std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) copy(parts[i].dst, parts[i].src, parts[i].size);
  }
  /// The size in bytes of the pieces in which a large copy lets other queues' copies in between, if a wait follows each.
  /// A copy submitted as one keeps its engine, and so do those that follow it in its queue.
  virtual std::uint64_t turn_bytes() const noexcept { return ~std::uint64_t{0}; }
  /// Whether it has `move_parts`.
  virtual bool moves_parts() const noexcept { return false; }
  /// Has the device itself read and write parts of which both ends are its own or locked memory, by its addresses. The
  /// list lies in HOST memory of the device, by its address, and stays until that is done. `bytes`: of all parts together;
  /// `aligned`: all their addresses are multiples of 128 bytes, and all sizes of 16.
  virtual void move_parts(Address, std::uint64_t /*count*/, std::uint64_t /*bytes*/, bool /*aligned*/) {
    throw Unsupported("this queue has no kernel that moves parts");
  }
  /// Whether the copy engines are likely to have moved `count` small parts sooner: `move_parts` has lately waited for the
  /// multiprocessors, which are full of others' work.
  virtual bool kernel_is_late(std::uint64_t /*count*/) { return false; }
  /// Writes the low `bytes` (1, 2 or 4) of `value` `count` times.
  virtual void fill(Address ptr, std::uint32_t value, unsigned bytes, std::uint64_t count) = 0;
  /// Calls a function of the host in its turn, on a thread of the vendor's, which it must not keep for long.
  virtual void call(void (*function)(void*), void* argument) = 0;

  /// Whether it has the next two; without them nothing can be staged.
  virtual bool waits_for_values() const noexcept = 0;
  /// Later work waits until the 32-bit word at a host address, in HOST memory of this device, has reached `value`:
  /// `int32(word - value) >= 0`. The word is written by threads of the host (by release) or by `write_value`.
  virtual void wait_value(Address address, std::uint32_t value) = 0;
  /// Writes a 32-bit word of HOST memory in its turn, after all data of the work before it.
  virtual void write_value(Address address, std::uint32_t value) = 0;
  /// `write_value` and then `wait_value`: one call where the vendor has one for both.
  virtual void write_then_wait(Address written, std::uint32_t value, Address awaited, std::uint32_t reached) {
    write_value(written, value);
    wait_value(awaited, reached);
  }

  /// The capture into whose graph the vendor records what is submitted here, instead of doing it; 0 where there is none.
  virtual std::uint64_t capture() { return 0; }
  /// Of a capture that takes no work: it has failed, or this vendor's captures cannot be recorded into.
  static constexpr std::uint64_t closed_capture = ~std::uint64_t{0};
  /// Calls `release(object)` once, on any thread, when the graph under capture and all that is instantiated from it are
  /// gone. `release` calls no vendor. After an error, which is GraphCapture where there is no such graph, it is called too.
  virtual void keep_with_graph(void* object, void (*release)(void*)) {
    release(object);
    throw GraphCapture("the queues of this vendor cannot tell when a graph is gone, so nothing is recorded into one");
  }

  /// A point after all that was submitted so far.
  virtual std::unique_ptr<VendorEvent> record() = 0;
  /// Later work waits for a point in any queue of the same vendor.
  virtual void wait(VendorEvent& event) = 0;
  /// Whether all that was submitted is done. Throws VendorError of work that failed.
  virtual bool done() = 0;
  /// Blocks until all that was submitted so far is done. Throws as `done`.
  virtual void synchronize() = 0;
  /// As `VendorEvent::wait_a_while`. `until` is 0 at first, and then what the call before has left there.
  virtual bool synchronize_a_while([[maybe_unused]] std::uint64_t& until) {
    synchronize();
    return true;
  }
  /// Gives it back once its work is done; one that was adopted stays. After an error it is still open.
  virtual void close() = 0;
};

/// One device, as its vendor's driver has it. There is one of each, and it is never destroyed, for what it has locked may
/// outlive any owner; only one that is written in Python goes with its Python object. Any thread may call it, several at a
/// time, and none of ours calls it under a lock.
class VendorDevice : public Locker {
 public:
  /// "cuda:0"
  virtual std::string const& name() const noexcept = 0;
  /// Whether it is never destroyed, so that native code may share its map.
  virtual bool is_permanent() const noexcept { return true; }
  /// The vendor's own handles of the device, such as an hsa_agent_t, and of the context in which it locks and allocates,
  /// or the memory pool that it allocates from; 0 where there is none.
  virtual std::uintptr_t native_handle() { return 0; }
  virtual std::uintptr_t native_context() { return 0; }
  /// As its maker calls it, such as "NVIDIA H200".
  virtual std::string description() { return name(); }
  /// On the PCI bus, such as "0000:3b:00.0"; empty where the vendor does not say.
  virtual std::string pci_address() { return {}; }
  /// The kinds that `allocate` takes.
  virtual std::vector<MemoryKind> memory_kinds() { return {MemoryKind::host, MemoryKind::device}; }
  /// Whether the driver can lock any host memory.
  virtual bool can_lock() { return true; }
  /// What `other` can do with device memory of this one. Where it reaches that memory, the access is enabled, and stays so.
  virtual MemoryConnection connection(VendorDevice& other) {
    return &other == this ? MemoryConnection::unified : MemoryConnection::none;
  }
  /// What the vendor calls its own link to `other`, such as "NVLink"; empty where there is none.
  virtual std::string link_to(VendorDevice&) { return {}; }
  /// What is wrong with the vendor's installation although it works.
  virtual std::vector<std::string> problems() { return {}; }
  /// Bytes that one `lock` can take.
  virtual std::uint64_t largest_lock() const noexcept { return ~std::uint64_t{0}; }

  /// Whether to lock memory that is there is quicker than to `allocate` HOST memory, and as good for the device.
  virtual bool locks_sooner() const noexcept { return false; }
  /// Exactly `size` bytes, aligned to at least 16; the host's address of host memory, else the device's.
  virtual Address allocate(std::uint64_t size, MemoryKind kind, bool write_combined = false) = 0;
  /// Gives back what `allocate` returned for this kind. After an error it is still allocated.
  virtual void free(Address ptr, MemoryKind kind) = 0;
  /// The allocation or registration around `ptr`, of any owner.
  virtual std::optional<MemoryInfo> memory_info(Address ptr) = 0;
  /// Copies in either direction, and waits until it is done.
  virtual void copy(Address dst, Address src, std::uint64_t size) = 0;
  /// Waits until all work of the device is done. A driver may end each capture of a stream by it.
  virtual void synchronize() = 0;
  /// The same for threads that the program does not know of: ends no capture, and may take longer.
  virtual void synchronize_beside_captures() { synchronize(); }

  virtual std::unique_ptr<VendorQueue> make_queue() = 0;
  /// Whether 0 is the handle of a stream that is always there.
  virtual bool has_default_stream() const noexcept { return false; }
  /// Over a foreign queue, which its owner keeps.
  virtual std::unique_ptr<VendorQueue> adopt_queue(std::uintptr_t handle) = 0;
};

/// The device of this full name, such as "cuda:0", the same one each time. Throws Unavailable, which says what is missing.
PINNING_API VendorDevice& vendor_device(std::string const& name);
/// An NVIDIA GPU as one of the program's contexts has it, for copies: its memory and streams are of that context, which the
/// caller keeps, and the primary one is left alone. Throws Unavailable, and VendorError.
PINNING_API std::unique_ptr<VendorDevice> cuda_device_of_context(std::uintptr_t context);

/// Number of devices of the vendor of this name, such as "cuda", at least 1. Throws Unavailable.
PINNING_API unsigned device_count(std::string const& vendor);

/// A vendor's library: its name as it was loaded, and the version as the vendor writes it.
struct VendorLibrary {
  std::string name, version;
};

/// Throws Unavailable where it cannot be loaded. Some vendors' libraries answer on a machine without a device.
PINNING_API VendorLibrary vendor_library(std::string const& vendor);

}  // namespace pinning
