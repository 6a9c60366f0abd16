// SPDX-License-Identifier: Apache-2.0
// The native interface that each vendor implements: its rules for locking, its memory, and the queues for copies.
// The map, the staging threads, the pools, the C interface and the OpenMP tool use vendors only by these three classes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "errors.hpp"
#include "locker.hpp"

namespace pinning {

/// The device lacks a feature; the text names an alternative.
class Unsupported : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Refuse an event of another vendor, because only events of `whose` can be waited for or compared.
[[noreturn]] inline void refuse_event(std::string const& whose) {
  throw Unsupported("this event is of another vendor than " + whose +
      ": its queues wait only for their own, and only those times are compared; wait for the event itself");
}

/// Where an allocation is: pinned host memory; memory of one device; memory that migrates as it is used.
enum class MemoryKind : std::uint8_t { host, device, shared };

/// How a device can access memory of another: not at all, so that copies go through the host; by copies without the
/// host; in place.
enum class MemoryConnection : std::uint8_t { none, migratable, unified };

/// An allocation or registration as its vendor knows it.
struct MemoryInfo {
  MemoryKind kind;
  Address base;        // the host's address of host memory, otherwise the device's
  std::uint64_t size;
  int device;          // the index of the device that it is on; -1: none
};

/// One copy of a batch: an item, or the part of one that takes one path. Kernels read this layout.
struct CopyItem {
  Address dst, src;
  std::uint64_t size;  // bytes
};

/// A point in a queue, reached when everything submitted before it is complete. Its destructor returns it to the
/// vendor, does not block, and may run on any thread.
class VendorEvent {
 public:
  virtual ~VendorEvent() = default;
  /// Whether it is reached. Throws VendorError if work before it failed.
  virtual bool done() = 0;
  /// Block until it is reached. Throws as `done`.
  virtual void wait() = 0;
  /// The same, but return false after a moment, or when a signal has been handled, if the vendor supports that.
  virtual bool wait_a_while() {
    wait();
    return true;
  }
  /// Seconds between two reached points of one vendor, by the device's clock if it has one.
  virtual double seconds_since(VendorEvent& earlier) = 0;
};

/// Cast an event to the vendor's own class. Throws Unsupported if it is another vendor's.
template <class Own>
Own& event_cast(VendorEvent& event, std::string const& whose) {
  if (auto* const own = dynamic_cast<Own*>(&event)) return *own;
  refuse_event(whose);
}

PINNING_API std::uint64_t next_queue_number() noexcept;

/// An in-order queue. Any thread may submit, but the caller must ensure that no two do so at once. `done`,
/// `synchronize` and `handle` may be called at any time. A refused call throws VendorError and has submitted nothing,
/// except that `copy_batch` may have submitted some of its parts.
class VendorQueue {
 public:
  /// Unique in the process, also among destroyed queues.
  std::uint64_t const number = next_queue_number();

  /// Close the queue.
  virtual ~VendorQueue() = default;

  /// The vendor's own handle, such as a cudaStream_t; 0 if there is none.
  virtual std::uintptr_t handle() const noexcept = 0;
  /// A number of the vendor's stream that no other one gets, also when this one is gone; 0 where it is not known.
  virtual std::uint64_t stream_number() { return 0; }

  /// Submit a copy. If an end is pageable host memory, it may block until that memory has been read or written.
  virtual void copy(Address dst, Address src, std::uint64_t size) = 0;
  /// Whether `copy` may read a pageable source, or its beginning, during the call, before earlier work has written it.
  virtual bool reads_early() const noexcept { return false; }
  virtual void copy_2d(Address dst, std::uint64_t dst_pitch, Address src, std::uint64_t src_pitch, std::uint64_t width,
                       std::uint64_t height) = 0;
  /// `copy` of each part, in one vendor call if there is one for that. No two parts may share a byte that one writes.
  virtual void copy_batch(CopyItem const* parts, std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) copy(parts[i].dst, parts[i].src, parts[i].size);
  }
  /// Bytes of the pieces into which a large copy is divided, with a wait after each, to let other queues' copies in
  /// between. A copy submitted as a whole occupies its copy engine, and so do the copies behind it in its queue.
  virtual std::uint64_t turn_bytes() const noexcept { return ~std::uint64_t{0}; }
  virtual bool moves_parts() const noexcept { return false; }
  /// Have a kernel of the device copy parts whose ends are its own or locked memory, given by device addresses. The
  /// list is in HOST memory of the device, given by its device address, and must stay until the copy is complete.
  /// `bytes`: of all parts together; `aligned`: all their addresses are multiples of 128 bytes, and all sizes of 16.
  virtual void move_parts(Address, std::uint64_t /*count*/, std::uint64_t /*bytes*/, bool /*aligned*/) {
    throw Unsupported("this queue has no kernel that moves parts");
  }
  /// Whether the copy engines would probably move `count` small parts sooner, because `move_parts` has recently waited
  /// for multiprocessors that were busy with other work.
  virtual bool kernel_is_late(std::uint64_t /*count*/) { return false; }
  /// Write the low `bytes` (1, 2 or 4) of `value` `count` times.
  virtual void fill(Address ptr, std::uint32_t value, unsigned bytes, std::uint64_t count) = 0;
  /// Call a host function in queue order, on a thread of the vendor; the function must return soon.
  virtual void call(void (*function)(void*), void* argument) = 0;

  /// Whether it has `wait_value` and `write_value`; without them nothing can be staged.
  virtual bool waits_for_values() const noexcept = 0;
  /// Make later work wait until the 32-bit word at a host address, in HOST memory of this device, has reached `value`:
  /// `int32(word - value) >= 0`. Host threads (with release order) or `write_value` write the word.
  virtual void wait_value(Address address, std::uint32_t value) = 0;
  /// Write a 32-bit word of HOST memory in queue order, after all data of the work before it.
  virtual void write_value(Address address, std::uint32_t value) = 0;
  /// `write_value` and then `wait_value`, in one vendor call if there is one for both.
  virtual void write_then_wait(Address written, std::uint32_t value, Address awaited, std::uint32_t reached) {
    write_value(written, value);
    wait_value(awaited, reached);
  }

  /// The capture into whose graph the vendor records what is submitted, instead of executing it; 0 if there is none.
  virtual std::uint64_t capture() { return 0; }
  /// Stands for a capture that accepts no work: it has failed, or this vendor's captures cannot be recorded into.
  static constexpr std::uint64_t closed_capture = ~std::uint64_t{0};
  /// Call `release(object)` once, on any thread, when the graph under capture and all that is instantiated from it are
  /// gone. `release` must call no vendor. It is called after an error too: GraphCapture if there is no such graph.
  virtual void keep_with_graph(void* object, void (*release)(void*)) {
    release(object);
    throw GraphCapture("the queues of this vendor cannot tell when a graph is gone, so nothing is recorded into one");
  }

  /// Return a point after everything submitted so far.
  virtual std::unique_ptr<VendorEvent> record() = 0;
  /// Make later work wait for a point in any queue of the same vendor.
  virtual void wait(VendorEvent& event) = 0;
  /// Whether everything submitted is complete. Throws VendorError if work failed.
  virtual bool done() = 0;
  /// Block until everything submitted so far is complete. Throws as `done`.
  virtual void synchronize() = 0;
  /// As `VendorEvent::wait_a_while`. `until` is 0 at first, then what the previous call left in it.
  virtual bool synchronize_a_while([[maybe_unused]] std::uint64_t& until) {
    synchronize();
    return true;
  }
  /// Close it once its work is complete; the vendor's queue stays if it was adopted. After an error it is still open.
  virtual void close() = 0;
};

/// One device, as its vendor's driver presents it. There is one object per device, never destroyed, because its locks
/// may outlive any owner; only a device written in Python, or of a context (`cuda_device_of_context`), has an owner.
/// Any number of threads may call it at once; this library never does so while holding a lock.
class VendorDevice : public Locker {
 public:
  /// "cuda:0"
  virtual std::string const& name() const noexcept = 0;
  /// Whether it is never destroyed, so that native code may share its map.
  virtual bool is_permanent() const noexcept { return true; }
  /// The vendor's own handles of the device, such as an hsa_agent_t, and of the context in which it locks and
  /// allocates, or the memory pool that it allocates from; 0 if there is none.
  virtual std::uintptr_t native_handle() { return 0; }
  virtual std::uintptr_t native_context() { return 0; }
  /// What tells `native_context` from a later one with the same handle. Asked for while it exists, and then known: nothing
  /// may be asked of a context that is gone. 0 if there is none.
  virtual std::uint64_t context_number() { return native_context(); }
  /// The product name, such as "NVIDIA H200".
  virtual std::string description() { return name(); }
  /// The address on the PCI bus, such as "0000:3b:00.0"; empty if unknown.
  virtual std::string pci_address() { return {}; }
  /// The kinds that `allocate` takes.
  virtual std::vector<MemoryKind> memory_kinds() { return {MemoryKind::host, MemoryKind::device}; }
  /// Whether the driver can lock any host memory.
  virtual bool can_lock() { return true; }
  /// How `other` can access device memory of this one. If it can in place, that access is enabled, and stays enabled.
  virtual MemoryConnection connection(VendorDevice& other) {
    return &other == this ? MemoryConnection::unified : MemoryConnection::none;
  }
  /// The vendor's name for its own link to `other`, such as "NVLink"; empty if there is none.
  virtual std::string link_to(VendorDevice&) { return {}; }
  /// Problems of the vendor's installation that do not prevent its use.
  virtual std::vector<std::string> problems() { return {}; }
  /// The devices for all of which memory is locked when this one locks it have the same registration domain, and one map.
  virtual std::string registration_domain() const { return name(); }
  /// The most bytes that one `lock` can take.
  virtual std::uint64_t largest_lock() const noexcept { return ~std::uint64_t{0}; }

  /// Copies that this library does not see may be in progress in locked memory: the next unlock of this vendor waits for
  /// them, if the vendor's own call does not.
  virtual void expect_copies_of_others() noexcept {}

  /// Whether locking existing memory is faster than `allocate` of HOST memory, and as good for the device.
  virtual bool locks_sooner() const noexcept { return false; }
  /// Allocate exactly `size` bytes, aligned to at least 16; the host's address of host memory, otherwise the device's.
  virtual Address allocate(std::uint64_t size, MemoryKind kind, bool write_combined = false) = 0;
  /// Free what `allocate` returned for this kind. After an error it is still allocated.
  virtual void free(Address ptr, MemoryKind kind) = 0;
  /// Allocate device memory that keeps its addresses while the vendor has its bytes. It is awake; `free` takes it asleep too.
  /// `set_awake`, of any address in it, loses the bytes, or brings others of undefined contents; no work may use it then.
  virtual Address allocate_sleepable(std::uint64_t) { refuse_sleep(); }
  virtual void set_awake(Address, bool) { refuse_sleep(); }
  /// The allocation or registration around `ptr`, of any owner.
  virtual std::optional<MemoryInfo> memory_info(Address ptr) = 0;
  /// Copy in either direction, and wait until that is complete.
  virtual void copy(Address dst, Address src, std::uint64_t size) = 0;
  /// Wait until all work of the device is complete. A driver may end every capture of a stream by that.
  virtual void synchronize() = 0;
  /// The same, for threads that the program does not know: ends no capture, but may take longer.
  virtual void synchronize_beside_captures() { synchronize(); }

  virtual std::unique_ptr<VendorQueue> make_queue() = 0;
  /// Whether 0 is the handle of a stream that always exists.
  virtual bool has_default_stream() const noexcept { return false; }
  /// Wrap a foreign queue, which its owner keeps.
  virtual std::unique_ptr<VendorQueue> adopt_queue(std::uintptr_t handle) = 0;

 private:
  [[noreturn]] void refuse_sleep() {
    throw Unsupported(name() + " has no memory that keeps its addresses while it sleeps; NVIDIA GPUs have it");
  }
};

/// The device of this full name, such as "cuda:0", always the same one. Throws Unavailable, which says what is missing.
PINNING_API VendorDevice& vendor_device(std::string const& name);
/// An NVIDIA GPU in one of the program's contexts, for copies: its memory and streams belong to that context, which the
/// caller keeps, and the primary context is not touched. Throws Unavailable and VendorError.
PINNING_API std::unique_ptr<VendorDevice> cuda_device_of_context(std::uintptr_t context);

/// Number of devices of the vendor of this name, such as "cuda", at least 1. Throws Unavailable.
PINNING_API unsigned device_count(std::string const& vendor);

/// A vendor's library: its name as it was loaded, and the version as the vendor writes it.
struct VendorLibrary {
  std::string name, version;
};

/// Throws Unavailable if it cannot be loaded. Some vendors' libraries can be loaded on a machine without a device.
PINNING_API VendorLibrary vendor_library(std::string const& vendor);

}  // namespace pinning
