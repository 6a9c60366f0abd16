// SPDX-License-Identifier: Apache-2.0
// The copies of <pinning/pinning.h>.
#include <pinning/batch.hpp>

#include "c_arguments.hpp"

/// Members go in the opposite order: what the batch keeps once its work is over, and then the queue.
struct pinning_copy {
  pinning_copy(pinning_map& map, pinning::VendorDevice& device, pinning::Items const& items,
               std::unique_ptr<pinning::VendorQueue> in)
      : queue(std::move(in)),
        batch(*map.map, device, items, pinning::Engine::automatic, queue->moves_parts(), pinning::BatchLimits{}) {}

  std::unique_ptr<pinning::VendorQueue> queue;
  pinning::Batch batch;
  std::unique_ptr<pinning::VendorEvent> over;
};

namespace {

using pinning::guarded;
using pinning::InvalidArgument;

static_assert(sizeof(pinning::Address) == sizeof(void*) && sizeof(std::uint64_t) == sizeof(std::size_t));

pinning::VendorDevice& device_of(pinning_map& map) {
  if (map.device != nullptr) return *map.device;
  throw InvalidArgument("a map of pinning_map_create has no queues; give one of pinning_map_open");
}

pinning::Items items(void* const* dsts, void const* const* srcs, std::size_t const* sizes, std::size_t count) {
  if (count == 0) throw pinning::InvalidRange("the batch has no items; give at least one dst and one src");
  if (dsts == nullptr || srcs == nullptr || sizes == nullptr) {
    throw InvalidArgument("a batch needs three arrays, of dsts, srcs and sizes, and one of them or all is null");
  }
  return {reinterpret_cast<pinning::Address const*>(dsts), reinterpret_cast<pinning::Address const*>(srcs), sizes, 1,
          count};
}

/// Runs `body`; after an error what was submitted is over, for then the copy goes.
template <class Body>
void over_after_an_error(pinning_copy& copy, Body&& body) {
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

/// Submits, and makes the event of its end.
void submit(pinning_copy& copy) {
  copy.batch.submit(*copy.queue);
  over_after_an_error(copy, [&] { copy.over = copy.queue->record(); });
}

void wait(pinning_copy& copy) {
  over_after_an_error(copy, [&] { copy.over->wait(); });
}

pinning_copy& given_copy(pinning_copy* copy) {
  if (copy == nullptr) throw InvalidArgument("the copy is null; pinning_copy_batch_async makes one");
  return *copy;
}

}  // namespace

pinning_status pinning_copy_batch(pinning_map* map, void* const* dsts, void const* const* srcs, size_t const* sizes,
                                  size_t count) noexcept {
  return guarded([&] {
    auto& device = device_of(pinning::given(map));
    pinning_copy copy(*map, device, items(dsts, srcs, sizes, count), device.make_queue());
    submit(copy);
    wait(copy);
    copy.queue->close();
  });
}

pinning_status pinning_copy_batch_async(pinning_map* map, void* const* dsts, void const* const* srcs,
                                        size_t const* sizes, size_t count, void* stream, pinning_copy** copy) noexcept {
  return guarded([&] {
    pinning::room(copy);
    auto& device = device_of(pinning::given(map));
    auto const wanted = items(dsts, srcs, sizes, count);
    auto queue = device.adopt_queue(pinning::word(stream));
    if (queue->capture() != 0) {
      throw pinning::GraphCapture("the stream is being captured into a graph, and a batch of this interface has an end to "
                                  "be asked for, which work in a graph has not: record the vendor's own copies of locked "
                                  "memory instead");
    }
    auto made = std::make_unique<pinning_copy>(*map, device, wanted, std::move(queue));
    submit(*made);
    *copy = made.release();
  });
}

pinning_status pinning_copy_done(pinning_copy* copy, int* done) noexcept {
  return guarded([&] {
    pinning::room(done);
    *done = given_copy(copy).over->done() ? 1 : 0;
  });
}

pinning_status pinning_copy_wait(pinning_copy* copy) noexcept {
  return guarded([&] {
    std::unique_ptr<pinning_copy> const owned(&given_copy(copy));
    wait(*owned);
  });
}
