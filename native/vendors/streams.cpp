// SPDX-License-Identifier: Apache-2.0
// Locks: `SpareEvents::mutex_` is taken last, for a few nanoseconds, and never held during a vendor call.
#include "streams.hpp"

#include <chrono>
#include <cstdio>
#include <thread>

#include "../base/spin_time.hpp"

namespace pinning {

namespace {

// Polling time before a wait sleeps: waking a thread takes 0.05 to 0.2 ms, which must be a small part of the wait.
constexpr auto polled = std::chrono::milliseconds(2);

}  // namespace

std::string pci_address(std::function<int(int)> const& attribute, int domain, int bus, int device) try {
  auto const of = [&](int asked) { return static_cast<unsigned>(attribute(asked)); };
  char text[48];
  std::snprintf(text, sizeof text, "%04x:%02x:%02x.0", of(domain), of(bus), of(device));
  return text;
} catch (VendorError const&) {
  return {};
}

SpareEvents::~SpareEvents() {
  while (Spare* const spare = pop()) delete spare;
}

SpareEvents::Spare* SpareEvents::take() {
  Spare *spare, *surplus = nullptr;
  {
    std::lock_guard const guard(mutex_);
    spare = pop();
    if (spare != nullptr && count_ > most) surplus = pop();
  }
  // There are more than needed. One is destroyed for each taken, so that no call has to destroy thousands.
  if (surplus != nullptr) destroy(surplus);
  if (spare != nullptr) return spare;
  auto fresh = std::make_unique<Spare>();
  Current const current(vendor_, where_);
  vendor_.check(vendor_.streams().event_create, &fresh->handle, StreamVendor::blocking_sync);
  return fresh.release();
}

void SpareEvents::give(Spare* spare) noexcept {
  ++count_;
  spare->next = given_.load(std::memory_order_relaxed);
  while (!given_.compare_exchange_weak(spare->next, spare, std::memory_order_release, std::memory_order_relaxed)) {
  }
}

void SpareEvents::destroy_all() noexcept {
  for (int left = count_; left > 0; --left) {  // bounded: those that cannot be destroyed are returned
    Spare* spare;
    {
      std::lock_guard const guard(mutex_);
      spare = pop();
    }
    if (spare == nullptr) return;
    destroy(spare);
  }
}

SpareEvents::Spare* SpareEvents::pop() noexcept {
  if (ready_ == nullptr) ready_ = given_.exchange(nullptr, std::memory_order_acquire);
  if (ready_ == nullptr) return nullptr;
  --count_;
  return std::exchange(ready_, ready_->next);
}

void SpareEvents::destroy(Spare* spare) noexcept {
  if (vendor_.streams().event_destroy(spare->handle) == 0) {
    delete spare;
  } else {  // it still exists
    vendor_.forget_error();
    give(spare);
  }
}

bool StreamEvent::done() {
  vendor_.started().check();
  BesideCaptures const beside(vendor_);
  auto const& query = vendor_.streams().event_query;
  return vendor_.ready(query, query(handle()));
}

void StreamEvent::wait() {
  for (SpinTime time; time.lasts() < polled;) {
    if (done()) return;
    std::this_thread::yield();
  }
  BesideCaptures const beside(vendor_);
  vendor_.check(vendor_.streams().event_synchronize, handle());
}

double StreamEvent::seconds_since(VendorEvent& earlier) {
  vendor_.started().check();
  BesideCaptures const beside(vendor_);
  float milliseconds = 0;
  vendor_.check(vendor_.streams().event_elapsed, &milliseconds, of(vendor_, earlier).handle(), handle());
  return static_cast<double>(milliseconds) / 1e3;
}

StreamEvent& StreamEvent::of(StreamVendor const& vendor, VendorEvent& event) {
  StreamEvent& ours = event_cast<StreamEvent>(event, vendor.name());
  if (&ours.vendor_ != &vendor) refuse_event(vendor.name());
  return ours;
}

StreamQueue::StreamQueue(StreamVendor const& vendor, Where where, std::shared_ptr<SpareEvents> spares, Calls calls,
                         std::optional<std::uintptr_t> adopted)
    : vendor_(vendor), where_(where), spares_(std::move(spares)), owned_(!adopted), calls_(calls) {
  if (adopted) {
    stream_ = reinterpret_cast<void*>(*adopted);
    return;
  }
  Current const current(vendor_, where_);
  vendor_.check(vendor_.streams().stream_create, &stream_, StreamVendor::non_blocking);
}

void StreamQueue::call(void (*function)(void*), void* argument) {
  submit(vendor_.streams().launch_host_function, stream_, function, argument);
}

std::unique_ptr<VendorEvent> StreamQueue::record() {
  auto const& record = vendor_.streams().event_record;
  vendor_.started().check();
  if (calls_ == Calls::never) refuse(name_of(record));
  auto event = std::make_unique<StreamEvent>(vendor_, spares_);
  submit(record, event->handle(), stream_);
  return event;
}

void StreamQueue::wait(VendorEvent& event) {
  submit(vendor_.streams().stream_wait_event, stream_, StreamEvent::of(vendor_, event).handle(), 0);
}

std::uint64_t StreamQueue::capture() {
  InUse::User const user(stream_use_);
  return calls_ == Calls::never ? 0 : capture_id();
}

std::uint64_t StreamQueue::capture_id() {
  int status = 0;
  int const code = result(vendor_.streams().stream_is_capturing, stream_, &status);
  if (code != 0) vendor_.forget_error();
  return code == StreamVendor::capture_implicit || (code == 0 && status != 0) ? closed_capture : 0;
}

bool StreamQueue::done() {
  InUse::User const user(stream_use_);
  BesideCaptures const beside(vendor_);
  auto const& query = vendor_.streams().stream_query;
  return vendor_.ready(query, result(query, stream_));
}

void StreamQueue::synchronize() {
  if (capture() != 0) throw GraphCapture(std::string(vendor_.name()) + " captures this stream, which cannot be waited for");
  InUse::User const user(stream_use_);
  BesideCaptures const beside(vendor_);
  submit(vendor_.streams().stream_synchronize, stream_);
}

void StreamQueue::close() {
  vendor_.started().check();
  Calls const before = calls_.exchange(Calls::never);
  if (before == Calls::never || !owned_) return;
  stream_use_.wait_until_unused();
  auto const& destroy = vendor_.streams().stream_destroy;
  try {
    vendor_.check_code(destroy, result(before, destroy, stream_));
  } catch (...) {
    calls_ = before;
    throw;
  }
}

void StreamQueue::close_quietly() noexcept {
  try {
    close();
  } catch (...) {
  }
}

void StreamQueue::refuse(std::string const& function) const {
  throw Unsupported(std::string("this ") + vendor_.name() + " queue is closed, so " + function +
                    " cannot be called: make another");
}

}  // namespace pinning
