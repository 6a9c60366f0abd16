// SPDX-License-Identifier: Apache-2.0
#include "ur_queue.hpp"

#include <system_error>
#include <thread>

namespace pinning::ur {

namespace {

/// Owns its handle.
class Event : public VendorEvent {
 public:
  explicit Event(void* handle) : handle(handle) {}
  ~Event() override {
    try {
      Loader::get().urEventRelease(handle);
    } catch (Unavailable const&) {  // in a fork, where it does not exist
    }
  }

  bool done() override {
    Loader const& loader = Loader::get();
    int const status = loader.ask<int>(loader.urEventGetInfo, handle, UR_EVENT_INFO_COMMAND_EXECUTION_STATUS);
    if (status == UR_EVENT_STATUS_COMPLETE) return true;
    if (status == UR_EVENT_STATUS_RUNNING || status == UR_EVENT_STATUS_SUBMITTED || status == UR_EVENT_STATUS_QUEUED) {
      return false;
    }
    wait();  // throws the reason
    throw VendorError({name_of(loader.urEventGetInfo), status, "UR_EVENT_STATUS_ERROR", "work before this event has failed"});
  }

  void wait() override {
    Loader const& loader = Loader::get();
    loader.check(loader.urEventWait, 1, &handle);
  }

  /// By the device's clock. Fails unless the queues of both events record the time (UR_QUEUE_FLAG_PROFILING_ENABLE), as
  /// queues made here do.
  double seconds_since(VendorEvent& earlier) override {
    Event const& before = of_ours(earlier);
    return static_cast<double>(static_cast<std::int64_t>(nanoseconds() - before.nanoseconds())) / 1e9;
  }

  static Event& of_ours(VendorEvent& event) { return event_cast<Event>(event, "Unified Runtime"); }

  void* const handle;

 private:
  std::uint64_t nanoseconds() const {
    Loader const& loader = Loader::get();
    return loader.ask<std::uint64_t>(loader.urEventGetProfilingInfo, handle,
                                     UR_PROFILING_INFO_COMMAND_END);
  }
};

}  // namespace

void QueueHandle::refuse(std::string const& function) const {
  throw Unsupported("this queue of " + device_ + " is closed, so " + function + " cannot be called: make another");
}

void QueueHandle::close() {
  Loader const& loader = Loader::get();
  if (!open_.exchange(false)) return;
  users_.wait_until_unused();
  int const code = owned_ ? loader.urQueueRelease(handle) : 0;
  if (code == 0) return;
  open_ = true;
  loader.check_code(loader.urQueueRelease, code);
}

/// urQueueRelease may wait for all work of the queue, so a thread calls it unless the queue is empty.
QueueHandle::~QueueHandle() {
  if (!open_ || !owned_) return;
  try {
    Loader const& loader = Loader::get();
    bool empty = false;
    loader.urQueueGetInfo(handle, UR_QUEUE_INFO_EMPTY, sizeof empty, &empty, nullptr);
    if (empty) {
      loader.urQueueRelease(handle);
    } else {
      std::thread([&loader, queue = handle] { loader.urQueueRelease(queue); }).detach();
    }
  } catch (Unavailable const&) {  // in a fork, where it does not exist
  } catch (std::system_error const&) {  // no thread can be started: the queue is not released
  }
}

template <class Signature, class... Arguments>
void Queue::submit(Function<Signature> const& function, Arguments... arguments) {
  Loader const& loader = Loader::get();
  queue_->use(function, [&] { loader.check(function, queue_->handle, arguments..., 0, nullptr, nullptr); });
}

void Queue::copy(Address dst, Address src, std::uint64_t size) {
  submit(Loader::get().urEnqueueUSMMemcpy, false, pointer(dst), pointer(src), size);
}

void Queue::copy_2d(Address dst, std::uint64_t dst_pitch, Address src, std::uint64_t src_pitch, std::uint64_t width,
                    std::uint64_t height) {
  submit(Loader::get().urEnqueueUSMMemcpy2D, false, pointer(dst), dst_pitch, pointer(src),
         src_pitch, width, height);
}

void Queue::fill(Address ptr, std::uint32_t value, unsigned bytes, std::uint64_t count) {
  submit(Loader::get().urEnqueueUSMFill, pointer(ptr), bytes, &value, bytes * count);
}

void Queue::call(void (*function)(void*), void* argument) {
  if (!calls_) {
    throw Unsupported("queues of " + device_ +
                      " cannot call functions of the host (urEnqueueHostTaskExp), nor wait for the events of other "
                      "vendors: wait for an event in a thread of your own, and go on there");
  }
  submit(Loader::get().urEnqueueHostTaskExp, function, argument, nullptr);
}

void Queue::wait_value(Address, std::uint32_t) { refuse_values(); }

void Queue::write_value(Address, std::uint32_t) { refuse_values(); }

void Queue::refuse_values() const {
  throw Unsupported("queues of " + device_ +
                    " cannot wait for values in memory, nor write them, because Unified Runtime has no such call: use "
                    "events");
}

std::unique_ptr<VendorEvent> Queue::record() {
  Loader const& loader = Loader::get();
  void* event = nullptr;
  queue_->use(loader.urEnqueueEventsWait, [&] {
    loader.check(loader.urEnqueueEventsWait, queue_->handle, 0, nullptr, &event);
  });
  return std::make_unique<Event>(event);
}

void Queue::wait(VendorEvent& event) {
  Loader const& loader = Loader::get();
  void* const awaited = Event::of_ours(event).handle;
  queue_->use(loader.urEnqueueEventsWaitWithBarrier, [&] {
    loader.check(loader.urEnqueueEventsWaitWithBarrier, queue_->handle, 1, &awaited, nullptr);
  });
}

bool Queue::done() {
  Loader const& loader = Loader::get();
  bool empty = false;
  queue_->use(loader.urQueueGetInfo, [&] {
    empty = loader.ask<bool>(loader.urQueueGetInfo, queue_->handle, UR_QUEUE_INFO_EMPTY);
  });
  return empty;
}

void Queue::synchronize() {
  Loader const& loader = Loader::get();
  queue_->use(loader.urQueueFinish, [&] { loader.check(loader.urQueueFinish, queue_->handle); });
}

}  // namespace pinning::ur
