// SPDX-License-Identifier: Apache-2.0
// The copies of <pinning/pinning.h>.
#include <pinning/batch.hpp>

#include "c_arguments.hpp"

/// Members are destroyed in reverse order: what the operation keeps until its work is complete, and then the queue.
struct pinning_copy {
  std::unique_ptr<pinning::VendorQueue> queue;
  std::unique_ptr<pinning::CopyOperation> operation;
  std::unique_ptr<pinning::VendorEvent> over;
};

namespace {

using Copy = struct pinning_copy;  // `pinning_copy` alone is the function
using pinning::guarded;
using pinning::InvalidArgument;

static_assert(sizeof(pinning::Address) == sizeof(void*) && sizeof(std::uint64_t) == sizeof(std::size_t));
static_assert(PINNING_PATH_PLAIN == static_cast<int>(pinning::CopyPath::plain));
static_assert(PINNING_REASON_NO_ROOM == static_cast<int>(pinning::Reason::no_room));

pinning::VendorDevice& device_of(pinning_map& map) {
  if (map.device != nullptr) return *map.device;
  throw InvalidArgument("a map of pinning_map_create has no queues; give one of pinning_map_open");
}

/// A queue over the vendor's `stream`, or over the default stream if it is null; a new queue if the device has none.
std::unique_ptr<pinning::VendorQueue> queue_over(pinning::VendorDevice& device, void* stream) {
  if (stream == nullptr && !device.has_default_stream()) return device.make_queue();
  auto queue = device.adopt_queue(pinning::word(stream));
  if (queue->capture() == 0) return queue;
  throw pinning::GraphCapture("the stream is being captured into a graph, and a copy of this interface can be waited for, "
                              "which work in a graph cannot: record the vendor's own copies of locked memory "
                              "instead");
}

/// What is copied: one range, or many.
class Single {
 public:
  Single(void* dst, void const* src, std::size_t size)
      : dst_(pinning::word(dst)), src_(pinning::word(src)), size_(size) {}

  std::unique_ptr<pinning::CopyOperation> submit(pinning_map& map, pinning::VendorQueue& queue) const {
    auto const request = pinning::request_of(*map.map, *map.device, dst_, src_, size_);
    return pinning::submit_copy(*map.map, *map.device, queue, request);
  }

 private:
  pinning::Address dst_, src_;
  std::uint64_t size_;
};

class Many {
 public:
  Many(void* const* dsts, void const* const* srcs, std::size_t const* sizes, std::size_t count)
      : items_{reinterpret_cast<pinning::Address const*>(dsts), reinterpret_cast<pinning::Address const*>(srcs), sizes, 1,
               count} {
    if (count == 0) throw pinning::InvalidRange("the batch has no items; give at least one dst and one src");
    if (dsts != nullptr && srcs != nullptr && sizes != nullptr) return;
    throw InvalidArgument("a batch needs three arrays, of dsts, srcs and sizes, and at least one of them is null");
  }

  std::unique_ptr<pinning::CopyOperation> submit(pinning_map& map, pinning::VendorQueue& queue) const {
    auto batch = std::make_unique<pinning::Batch>(*map.map, *map.device, queue, items_, pinning::Engine::automatic,
                                                  pinning::CopyLimits{});
    batch->submit(queue);
    return batch;
  }

 private:
  pinning::Items items_;
};

/// Run `body`; after an error, wait for the submitted work, because the copy is then destroyed.
template <class Body>
void over_after_an_error(Copy& copy, Body&& body) {
  try {
    body();
  } catch (...) {
    try {
      copy.queue->synchronize();
    } catch (...) {  // the first error says more
    }
    throw;
  }
}

/// Submit a copy, and record the event of its end.
template <class What>
std::unique_ptr<Copy> submitted(pinning_map& map, What const& what, std::unique_ptr<pinning::VendorQueue> queue) {
  auto copy = std::make_unique<Copy>();
  copy->queue = std::move(queue);
  copy->operation = what.submit(map, *copy->queue);
  over_after_an_error(*copy, [&] { copy->over = copy->queue->record(); });
  return copy;
}

void wait(Copy& copy) {
  over_after_an_error(copy, [&] { copy.over->wait(); });
}

template <class What>
void copy_and_wait(pinning_map& map, What const& what) {
  auto const copy = submitted(map, what, map.device->make_queue());
  wait(*copy);
  copy->queue->close();
}

template <class Known>
Known& given_copy(Known* copy) {
  if (copy == nullptr) throw InvalidArgument("the copy is null; pinning_copy_async and pinning_copy_batch_async make one");
  return *copy;
}

}  // namespace

pinning_status pinning_copy(pinning_map* map, void* dst, void const* src, size_t size) noexcept {
  return guarded([&] {
    device_of(pinning::given(map));
    copy_and_wait(*map, Single(dst, src, size));
  });
}

pinning_status pinning_copy_async(pinning_map* map, void* dst, void const* src, size_t size, void* stream,
                                  struct pinning_copy** copy) noexcept {
  return guarded([&] {
    pinning::room(copy);
    auto queue = queue_over(device_of(pinning::given(map)), stream);
    *copy = submitted(*map, Single(dst, src, size), std::move(queue)).release();
  });
}

pinning_status pinning_copy_batch(pinning_map* map, void* const* dsts, void const* const* srcs, size_t const* sizes,
                                  size_t count) noexcept {
  return guarded([&] {
    device_of(pinning::given(map));
    copy_and_wait(*map, Many(dsts, srcs, sizes, count));
  });
}

pinning_status pinning_copy_batch_async(pinning_map* map, void* const* dsts, void const* const* srcs,
                                        size_t const* sizes, size_t count, void* stream,
                                        struct pinning_copy** copy) noexcept {
  return guarded([&] {
    pinning::room(copy);
    auto& device = device_of(pinning::given(map));
    Many const many(dsts, srcs, sizes, count);
    *copy = submitted(*map, many, queue_over(device, stream)).release();
  });
}

pinning_status pinning_copy_path(struct pinning_copy const* copy, pinning_path* path) noexcept {
  return guarded([&] {
    pinning::room(path);
    *path = static_cast<pinning_path>(given_copy(copy).operation->path());
  });
}

pinning_status pinning_copy_reason(struct pinning_copy const* copy, pinning_reason* reason) noexcept {
  return guarded([&] {
    pinning::room(reason);
    *reason = static_cast<pinning_reason>(given_copy(copy).operation->reason());
  });
}

pinning_status pinning_copy_done(struct pinning_copy* copy, int* done) noexcept {
  return guarded([&] {
    pinning::room(done);
    *done = given_copy(copy).over->done() ? 1 : 0;
  });
}

pinning_status pinning_copy_wait(struct pinning_copy* copy) noexcept {
  return guarded([&] {
    std::unique_ptr<Copy> const owned(&given_copy(copy));
    wait(*owned);
  });
}
