// SPDX-License-Identifier: Apache-2.0
// The queues and events of <pinning/pinning.h>.
#include "c_work.hpp"

namespace {

using pinning::guarded;
using pinning::InvalidArgument;

pinning::Queue& given(pinning_queue* queue) {
  if (queue == nullptr) {
    throw InvalidArgument("the queue is null; make one by pinning_queue_create or pinning_queue_adopt");
  }
  return *queue->queue;
}

template <class Known>
Known& given_event(Known* event) {
  if (event == nullptr) throw InvalidArgument("the event is null; submitting to a queue makes one");
  return *event;
}

pinning::Events given_events(pinning_event* const* wait_for, std::size_t waits) {
  if (waits > 0 && wait_for == nullptr) throw InvalidArgument("the array of events is null, and has a length");
  pinning::Events events;
  for (std::size_t i = 0; i < waits; ++i) events.push_back(&given_event(wait_for[i]).event);
  return events;
}

void make(pinning_map* map, bool ordered, pinning_queue** queue) {
  pinning::room(queue);
  *queue = new pinning_queue{*map, pinning::Queue::make(pinning::device_of(pinning::given(map)), ordered)};
}

template <class Work>
void submit(pinning_queue* queue, Work const& work, pinning_event* const* wait_for, std::size_t waits,
            pinning_event** event) {
  pinning::Queue& in = given(queue);
  pinning::PinnedMap& map = *pinning::given(&queue->map).map;
  auto const after = given_events(wait_for, waits);
  std::unique_ptr<pinning_event> end = event == nullptr ? nullptr : std::make_unique<pinning_event>();
  pinning::Event submitted = pinning::submitted(map, in, work, after);
  if (end == nullptr) return;
  end->event = std::move(submitted);
  *event = end.release();
}

pinning::How how(pinning_event const* event) {
  auto const& how = given_event(event).event.how();
  if (!how) throw InvalidArgument("this event is not of a copy, so it has neither a path nor a reason");
  return *how;
}

}  // namespace

pinning_status pinning_queue_create(pinning_map* map, pinning_queue** queue) noexcept {
  return guarded([&] { make(map, true, queue); });
}

pinning_status pinning_queue_create_out_of_order(pinning_map* map, pinning_queue** queue) noexcept {
  return guarded([&] { make(map, false, queue); });
}

pinning_status pinning_queue_adopt(pinning_map* map, void* stream, pinning_queue** queue) noexcept {
  return guarded([&] {
    pinning::room(queue);
    auto& device = pinning::device_of(pinning::given(map));
    if (stream == nullptr && !device.has_default_stream()) {
      throw InvalidArgument("the stream is null, and " + device.name() + " has no default stream; give a stream, or make a "
                            "queue by pinning_queue_create");
    }
    *queue = new pinning_queue{*map, std::make_unique<pinning::Queue>(pinning::Lane::adopt(device, pinning::word(stream)))};
  });
}

pinning_status pinning_queue_destroy(pinning_queue* queue) noexcept {
  return guarded([&] {
    given(queue);
    std::unique_ptr<pinning_queue> const owned(queue);
    owned->queue->close();
  });
}

pinning_status pinning_queue_copy(pinning_queue* queue, void* dst, void const* src, size_t size,
                                  pinning_event* const* wait_for, size_t waits, pinning_event** event) noexcept {
  return guarded([&] { submit(queue, pinning::RangeWork(dst, src, size), wait_for, waits, event); });
}

pinning_status pinning_queue_copy_2d(pinning_queue* queue, void* dst, size_t dst_pitch, void const* src,
                                     size_t src_pitch, size_t width, size_t height, pinning_event* const* wait_for,
                                     size_t waits, pinning_event** event) noexcept {
  return guarded([&] {
    pinning::Rows const rows{pinning::word(dst), dst_pitch, pinning::word(src), src_pitch, width, height};
    submit(queue, pinning::RowsWork(rows), wait_for, waits, event);
  });
}

pinning_status pinning_queue_copy_batch(pinning_queue* queue, void* const* dsts, void const* const* srcs,
                                        size_t const* sizes, size_t count, pinning_event* const* wait_for,
                                        size_t waits, pinning_event** event) noexcept {
  return guarded([&] { submit(queue, pinning::BatchWork(dsts, srcs, sizes, count), wait_for, waits, event); });
}

pinning_status pinning_queue_record(pinning_queue* queue, pinning_event** event) noexcept {
  return guarded([&] {
    pinning::room(event);
    *event = new pinning_event{given(queue).record()};
  });
}

pinning_status pinning_queue_wait(pinning_queue* queue, pinning_event* const* events, size_t count) noexcept {
  return guarded([&] { given(queue).wait(given_events(events, count)); });
}

pinning_status pinning_queue_synchronize(pinning_queue* queue) noexcept {
  return guarded([&] { given(queue).synchronize(); });
}

pinning_status pinning_event_done(pinning_event* event, int* done) noexcept {
  return guarded([&] {
    pinning::room(done);
    *done = given_event(event).event.done() ? 1 : 0;
  });
}

pinning_status pinning_event_wait(pinning_event* event) noexcept {
  return guarded([&] { given_event(event).event.wait(); });
}

pinning_status pinning_event_path(pinning_event const* event, pinning_path* path) noexcept {
  return guarded([&] { pinning::room(path) = static_cast<pinning_path>(how(event).path); });
}

pinning_status pinning_event_reason(pinning_event const* event, pinning_reason* reason) noexcept {
  return guarded([&] { pinning::room(reason) = static_cast<pinning_reason>(how(event).reason); });
}

pinning_status pinning_event_destroy(pinning_event* event) noexcept {
  return guarded([&] { delete &given_event(event); });
}
