// SPDX-License-Identifier: Apache-2.0
// The copies of <pinning/pinning.h> that need no queue of the caller's.
#include "c_work.hpp"

/// A copy in a stream, or in a queue of its own.
struct pinning_async_copy {
  pinning_event end;
  std::shared_ptr<pinning::Lane> lane;
};

namespace {

using Copy = pinning_async_copy;
using pinning::guarded;
using pinning::InvalidArgument;
using pinning::Lane;
using pinning::Queue;

static_assert(sizeof(pinning::Address) == sizeof(void*) && sizeof(std::uint64_t) == sizeof(std::size_t));
static_assert(PINNING_PATH_PLAIN == static_cast<int>(pinning::CopyPath::plain));
static_assert(PINNING_REASON_NO_ROOM == static_cast<int>(pinning::Reason::no_room));

template <class Work>
void copy_and_wait(pinning_map* map, Work const& work) {
  auto const queue = Queue::make(pinning::device_of(pinning::given(map)), true);
  pinning::submitted(*map->map, *queue, work, {});
  queue->close();
}

/// Submit a copy to the vendor's `stream`, or to the default stream if it is null; to a queue of its own if the device has
/// none.
template <class Work>
Copy* submitted(pinning_map* map, Work const& work, void* stream) {
  auto& device = pinning::device_of(pinning::given(map));
  bool const own = stream == nullptr && !device.has_default_stream();
  auto const lane = own ? Lane::make(device) : Lane::adopt(device, pinning::word(stream));
  auto copy = std::make_unique<Copy>();
  Queue queue(lane);
  copy->end.event = pinning::submitted(*map->map, queue, work, {});
  copy->lane = lane;
  return copy.release();
}

template <class Known>
Known& given_copy(Known* copy) {
  if (copy == nullptr) throw InvalidArgument("the copy is null; pinning_copy_async and pinning_copy_batch_async make one");
  return *copy;
}

}  // namespace

pinning_status pinning_copy(pinning_map* map, void* dst, void const* src, size_t size) noexcept {
  return guarded([&] { copy_and_wait(map, pinning::RangeWork(dst, src, size)); });
}

pinning_status pinning_copy_async(pinning_map* map, void* dst, void const* src, size_t size, void* stream,
                                  pinning_async_copy** copy) noexcept {
  return guarded([&] {
    pinning::room(copy);
    *copy = submitted(map, pinning::RangeWork(dst, src, size), stream);
  });
}

pinning_status pinning_copy_batch(pinning_map* map, void* const* dsts, void const* const* srcs, size_t const* sizes,
                                  size_t count) noexcept {
  return guarded([&] { copy_and_wait(map, pinning::BatchWork(dsts, srcs, sizes, count)); });
}

pinning_status pinning_copy_batch_async(pinning_map* map, void* const* dsts, void const* const* srcs,
                                        size_t const* sizes, size_t count, void* stream,
                                        pinning_async_copy** copy) noexcept {
  return guarded([&] {
    pinning::room(copy);
    *copy = submitted(map, pinning::BatchWork(dsts, srcs, sizes, count), stream);
  });
}

pinning_status pinning_copy_path(pinning_async_copy const* copy, pinning_path* path) noexcept {
  if (copy == nullptr) return guarded([&] { given_copy(copy); });
  return pinning_event_path(&copy->end, path);
}

pinning_status pinning_copy_reason(pinning_async_copy const* copy, pinning_reason* reason) noexcept {
  if (copy == nullptr) return guarded([&] { given_copy(copy); });
  return pinning_event_reason(&copy->end, reason);
}

pinning_status pinning_copy_done(pinning_async_copy* copy, int* done) noexcept {
  if (copy == nullptr) return guarded([&] { given_copy(copy); });
  return pinning_event_done(&copy->end, done);
}

pinning_status pinning_copy_wait(pinning_async_copy* copy) noexcept {
  return guarded([&] {
    std::unique_ptr<Copy> const owned(&given_copy(copy));
    auto const quietly = [](auto&& step) {
      try {
        step();
      } catch (...) {  // the first error says more
      }
    };
    Lane& lane = *owned->lane;
    try {
      owned->end.event.wait();
    } catch (...) {
      quietly([&] { lane.synchronize(); });  // the locks of a copy that failed are released once the stream is idle
      if (!lane.is_adopted()) quietly([&] { lane.close(); });
      throw;
    }
    if (!lane.is_adopted()) lane.close();
  });
}
