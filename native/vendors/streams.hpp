// SPDX-License-Identifier: Apache-2.0
// Streams and events, which CUDA and HIP have alike: the same calls under other names. What differs, each vendor's own
// file has.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <pinning/vendor.hpp>
#include <utility>

#include "driver.hpp"
#include "in_use.hpp"

namespace pinning {

/// What must be current in a thread for some calls: a context, or the number of a device.
using Where = std::uintptr_t;

/// The calls of a vendor that are about streams and events.
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

  /// What a query says: done, not yet, or by throwing why it never will be.
  bool ready(Function<int(void*)> const& query, int code) const {
    if (code == not_ready) {
      forget_error();
      return false;
    }
    check_code(query, code);
    return true;
  }

  /// Makes it current in this thread. What is returned is for `leave`, which brings back what was before; that it fails
  /// must not undo what was done between.
  virtual Where enter(Where where) const = 0;
  virtual void leave(Where before) const noexcept = 0;

  /// Clears the thread's last error, for a vendor that keeps it until it is read.
  virtual void forget_error() const noexcept {}

  static constexpr int not_ready = 600;
  static constexpr int capture_implicit = 906;  // of a default stream, while a stream that waits for it is captured
  static constexpr int capture_relaxed = 2;
  static constexpr unsigned non_blocking = 1;   // a stream that neither waits for the default stream nor that for it
  static constexpr unsigned blocking_sync = 1;  // a wait for an event sleeps instead of keeping a processor

 protected:
  Functions streams_{};

 private:
  char const* const name_;
};

/// While it lives, calls of this thread break no capture of a stream. A driver takes all calls that ask or wait, allocate,
/// free or register for unsafe while a stream is captured: it refuses them, and the capture is lost, even that of
/// another thread (measured on an H200: with this guard it accepts them, and only a wait for the whole device still
/// ends a capture).
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

/// A place that is current in this thread, and afterwards whichever was before. Its calls break no capture.
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

/// Events of one place that are no longer needed, to be recorded again: to make, record and destroy one takes 2.1 us
/// (H200), to record one again 1.2, the time included. Every event records the time, since it is not known beforehand
/// which will be asked for it.
class SpareEvents {
 public:
  struct Spare {
    void* handle;
    Spare* next;
  };

  SpareEvents(StreamVendor const& vendor, Where where) : vendor_(vendor), where_(where) {}
  SpareEvents(SpareEvents const&) = delete;
  /// What is left of the vendor's events goes with their place.
  ~SpareEvents();

  /// One of them, or a new one.
  Spare* take();
  /// Any destructor may call it, which must wait for nothing: so it takes no lock and does not call the vendor.
  void give(Spare* spare) noexcept;
  /// Destroys those that are here.
  void destroy_all() noexcept;

 private:
  static constexpr int most = 64;

  Spare* pop() noexcept;  // mutex_
  void destroy(Spare* spare) noexcept;

  StreamVendor const& vendor_;
  Where const where_;
  std::atomic<Spare*> given_ = nullptr;
  std::atomic<int> count_ = 0;
  std::mutex mutex_;  // for `take`
  Spare* ready_ = nullptr;
};

/// The name of a GPU on the PCI bus, such as "0000:3b:00.0".
std::string pci_address(int domain, int bus, int device);

/// A point in a stream. The vendor's event goes back to the spares.
class StreamEvent final : public VendorEvent {
 public:
  StreamEvent(StreamVendor const& vendor, std::shared_ptr<SpareEvents> spares)
      : vendor_(vendor), spares_(std::move(spares)), spare_(spares_->take()) {}
  ~StreamEvent() override { spares_->give(spare_); }

  bool done() override;
  void wait() override;
  double seconds_since(VendorEvent& earlier) override;

  void* handle() const noexcept { return spare_->handle; }
  /// The event as one of this vendor's. Throws Foreign.
  static StreamEvent& of(StreamVendor const& vendor, VendorEvent& event);

 private:
  StreamVendor const& vendor_;
  std::shared_ptr<SpareEvents> const spares_;
  SpareEvents::Spare* const spare_;
};

/// A stream: all but what moves bytes and waits for words.
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
  /// Whether calls are made with the place of the stream current.
  enum class Calls : std::uint8_t { as_it_is, in_place, never };

  /// A new stream, or `adopted`, which stays when this is closed.
  StreamQueue(StreamVendor const& vendor, Where where, std::shared_ptr<SpareEvents> spares, Calls calls,
              std::optional<std::uintptr_t> adopted);
  /// For the destructor of each vendor's queue.
  void close_quietly() noexcept;

  /// Whether to repeat a call that has given this code, from now on with the place current.
  virtual bool wants_place(int) const noexcept { return false; }

  /// `capture`, of a stream that is not closed meanwhile. A vendor that cannot record has closed captures only.
  virtual std::uint64_t capture_id();

  void* stream() const noexcept { return stream_; }
  Where where() const noexcept { return where_; }

  /// The code that a function of the vendor's returns.
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
  InUse stream_use_;  // by calls that other threads make while one may close it
};

}  // namespace pinning
