// SPDX-License-Identifier: Apache-2.0
// Streams and events of CUDA and HIP: the same calls under other names. The differences are in each vendor's own files.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <pinning/vendor.hpp>
#include <utility>

#include "driver.hpp"
#include "in_use.hpp"

namespace pinning {

/// A place, which must be current in a thread for some calls: a CUDA context, or the index of a HIP device.
using Where = std::uintptr_t;

/// A vendor's calls for streams and events.
class StreamVendor : public VendorDriver {
 public:
  struct Functions {
    Function<int(void**, unsigned)> stream_create;
    Function<int(void*)> stream_destroy, stream_query, stream_synchronize;
    Function<int(void*, void*, unsigned)> stream_wait_event;
    Function<int(void*, void (*)(void*), void*)> launch_host_function;
    Function<int(void**, unsigned)> event_create;
    Function<int(void*)> event_destroy, event_query, event_synchronize;
    Function<int(void*, void*)> event_record;
    Function<int(float*, void*, void*)> event_elapsed;
    Function<int(void*, int*)> stream_is_capturing;
    Function<int(int*)> thread_exchange_capture_mode;
  };

  explicit StreamVendor(char const* name) : VendorDriver(name), name_(name) {}

  char const* name() const noexcept { return name_; }
  Functions const& streams() const noexcept { return streams_; }

  /// The result of a query: true if done, false if not ready. Throws for any other code.
  bool ready(Function<int(void*)> const& query, int code) const {
    if (code == not_ready) {
      forget_error();
      return false;
    }
    check_code(query, code);
    return true;
  }

  /// Makes a place current in this thread, and returns the value for `leave`, which restores the previous one. A
  /// failure of `leave` is ignored: it must not undo the work in between.
  virtual Where enter(Where where) const = 0;
  virtual void leave(Where before) const noexcept = 0;

  /// Clears the thread's last error, if the vendor keeps it until it is read.
  virtual void forget_error() const noexcept {}

  static constexpr int not_ready = 600;
  static constexpr int capture_implicit = 906;  // default stream, while a stream that waits for it is captured
  static constexpr int capture_relaxed = 2;
  static constexpr unsigned non_blocking = 1;   // a stream that does not synchronize with the default stream
  static constexpr unsigned blocking_sync = 1;  // waits for the event sleep instead of spinning

 protected:
  Functions streams_{};

 private:
  char const* const name_;
};

/// While it exists, calls of this thread end no capture of a stream. While a stream is captured, a driver regards all
/// calls that query, wait, allocate, free or register as unsafe: it refuses them, and the capture is lost, even another
/// thread's (measured on an H200: with this guard it accepts them, and only a wait for the whole device still ends a
/// capture).
class BesideCaptures {
 public:
  explicit BesideCaptures(StreamVendor const& vendor) noexcept : vendor_(vendor) { exchange(); }
  ~BesideCaptures() { exchange(); }
  BesideCaptures(BesideCaptures const&) = delete;

 private:
  void exchange() noexcept {
    if (vendor_.streams().thread_exchange_capture_mode(&mode_) != 0) vendor_.forget_error();
  }

  StreamVendor const& vendor_;
  int mode_ = StreamVendor::capture_relaxed;
};

/// Makes a place current in this thread while it exists, then restores the previous one. Its calls end no capture.
class Current {
 public:
  Current(StreamVendor const& vendor, Where where) : vendor_(vendor), beside_(vendor), before_(vendor.enter(where)) {}
  ~Current() { vendor_.leave(before_); }
  Current(Current const&) = delete;

 private:
  StreamVendor const& vendor_;
  BesideCaptures const beside_;
  Where const before_;
};

/// Unused events of one place, to be recorded again: creating, recording and destroying an event takes 2.1 us (H200),
/// recording an existing one 1.2 us, with timing. Every event records the time, because any may be asked for it later.
class SpareEvents {
 public:
  struct Spare {
    void* handle;
    Spare* next;
  };

  SpareEvents(StreamVendor const& vendor, Where where) : vendor_(vendor), where_(where) {}
  SpareEvents(SpareEvents const&) = delete;
  /// The vendor's events are not destroyed here: they end with their place.
  ~SpareEvents();

  /// Takes one of them, or creates one.
  Spare* take();
  /// Returns one. May be called by any destructor, which must not wait: it takes no lock and does not call the vendor.
  void give(Spare* spare) noexcept;
  /// Destroys all spares.
  void destroy_all() noexcept;

 private:
  static constexpr int most = 64;

  Spare* pop() noexcept;  // with `mutex_` held, or in the destructor
  void destroy(Spare* spare) noexcept;

  StreamVendor const& vendor_;
  Where const where_;
  std::atomic<Spare*> given_ = nullptr;
  std::atomic<int> count_ = 0;
  std::mutex mutex_;  // for `take`
  Spare* ready_ = nullptr;
};

/// A GPU's address on the PCI bus, such as "0000:3b:00.0", from these attributes; empty if the vendor does not tell one.
std::string pci_address(std::function<int(int)> const& attribute, int domain, int bus, int device);

/// A point in a stream. Its destructor returns the vendor's event to the spares.
class StreamEvent final : public VendorEvent {
 public:
  StreamEvent(StreamVendor const& vendor, std::shared_ptr<SpareEvents> spares)
      : vendor_(vendor), spares_(std::move(spares)), spare_(spares_->take()) {}
  ~StreamEvent() override { spares_->give(spare_); }

  bool done() override;
  void wait() override;
  double seconds_since(VendorEvent& earlier) override;

  void* handle() const noexcept { return spare_->handle; }
  /// Casts to an event of this vendor. Throws Unsupported if it is another vendor's.
  static StreamEvent& of(StreamVendor const& vendor, VendorEvent& event);

 private:
  StreamVendor const& vendor_;
  std::shared_ptr<SpareEvents> const spares_;
  SpareEvents::Spare* const spare_;
};

/// A stream, except copies, fills, and waits for words in memory.
class StreamQueue : public VendorQueue {
 public:
  std::uintptr_t handle() const noexcept override { return reinterpret_cast<std::uintptr_t>(stream_); }
  void call(void (*function)(void*), void* argument) override;
  std::uint64_t capture() final;
  std::unique_ptr<VendorEvent> record() override;
  void wait(VendorEvent& event) override;
  bool done() override;
  /// Throws GraphCapture while the stream is captured: the driver would end the capture.
  void synchronize() override;
  void close() override;

 protected:
  /// How calls are made: as they are, with the stream's place current, or not at all (closed).
  enum class Calls : std::uint8_t { as_it_is, in_place, never };

  /// Creates a stream, or wraps `adopted`, which `close` does not destroy.
  StreamQueue(StreamVendor const& vendor, Where where, std::shared_ptr<SpareEvents> spares, Calls calls,
              std::optional<std::uintptr_t> adopted);
  /// For the destructor of each vendor's queue.
  void close_quietly() noexcept;

  /// Whether to repeat a call that returned this code, and make later calls, with the place current.
  virtual bool wants_place(int) const noexcept { return false; }

  /// Implements `capture` for an open stream. By default, for vendors that cannot record, every capture is closed.
  virtual std::uint64_t capture_id();

  void* stream() const noexcept { return stream_; }
  Where where() const noexcept { return where_; }

  /// Calls a function of the vendor and returns its code.
  template <class... Parameters>
  int result(Function<int(Parameters...)> const& function, std::type_identity_t<Parameters>... arguments) {
    vendor_.started().check();
    return result(calls_.load(), function, arguments...);
  }
  template <class... Parameters>
  void submit(Function<int(Parameters...)> const& function, std::type_identity_t<Parameters>... arguments) {
    vendor_.check_code(function, result(function, arguments...));
  }

 private:
  template <class... Parameters>
  int result(Calls calls, Function<int(Parameters...)> const& function, std::type_identity_t<Parameters>... arguments) {
    if (calls == Calls::as_it_is) {
      int const code = function(arguments...);
      if (code == 0 || !wants_place(code)) return code;
      calls_.compare_exchange_strong(calls, Calls::in_place);
    } else if (calls == Calls::never) {
      refuse(name_of(function));
    }
    Current const current(vendor_, where_);
    return function(arguments...);
  }
  [[noreturn]] void refuse(std::string const& function) const;

  StreamVendor const& vendor_;
  Where const where_;
  std::shared_ptr<SpareEvents> const spares_;
  void* stream_ = nullptr;
  bool const owned_;
  std::atomic<Calls> calls_;
  InUse stream_use_;  // calls of threads that may run while another closes it
};

}  // namespace pinning
