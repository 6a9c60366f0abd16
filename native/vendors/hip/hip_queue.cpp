// SPDX-License-Identifier: Apache-2.0
#include "hip_queue.hpp"

#include "../batch_call.hpp"

namespace pinning::hip {

void Queue::copy(Address dst, Address src, std::uint64_t size) {
  submit(runtime_.hipMemcpyAsync, pointer(dst), pointer(src), size, hipMemcpyDefault, stream());
}

void Queue::copy_2d(Address dst, std::uint64_t dst_pitch, Address src, std::uint64_t src_pitch, std::uint64_t width,
                    std::uint64_t height) {
  submit(runtime_.hipMemcpy2DAsync, pointer(dst), dst_pitch, pointer(src), src_pitch, width, height, hipMemcpyDefault,
         stream());
}

void Queue::copy_batch(CopyItem const* parts, std::uint64_t count) {
  if (count < 2 || !runtime_.hipMemcpyBatchAsync) return VendorQueue::copy_batch(parts, count);
  copy_by_batch_call<void*>(*this, parts, count, [&](auto* dsts, auto* srcs, auto* sizes, auto now) {
    std::size_t failed = 0;
    int const code = result(runtime_.hipMemcpyBatchAsync, dsts, srcs, sizes, now, nullptr, nullptr, 0, &failed,
                            stream());
    if (code != 0) runtime_.forget_error();  // other code checks it after its kernels
    return code;
  });
}

void Queue::fill(Address ptr, std::uint32_t value, unsigned bytes, std::uint64_t count) {
  switch (bytes) {
    case 1: return submit(runtime_.hipMemsetD8Async, pointer(ptr), static_cast<unsigned char>(value), count, stream());
    case 2: return submit(runtime_.hipMemsetD16Async, pointer(ptr), static_cast<unsigned short>(value), count, stream());
    default: return submit(runtime_.hipMemsetD32Async, pointer(ptr), static_cast<int>(value), count, stream());
  }
}

void Queue::wait_value(Address address, std::uint32_t value) {
  require_values();
  if (value >= std::uint32_t{1} << 31) {
    throw Unsupported("hip:" + std::to_string(where()) + " cannot wait until a word has reached " +
                      std::to_string(value) + ": HIP compares numbers that do not wrap, and so only those below 2**31; "
                      "begin again with a word that is 0");
  }
  submit(runtime_.hipStreamWaitValue32, stream(), pointer(address), value, hipStreamWaitValueGte, ~std::uint32_t{0});
}

void Queue::write_value(Address address, std::uint32_t value) {
  require_values();
  submit(runtime_.hipStreamWriteValue32, stream(), pointer(address), value, 0);
}

void Queue::require_values() const {
  if (waits_for_values_) return;
  throw Unsupported("queues of hip:" + std::to_string(where()) +
                    " cannot wait for values in HOST memory, nor write them: this GPU or this release of the runtime "
                    "cannot, or GPU_STREAMOPS_CP_WAIT is set; use events, or a function of the host");
}

}  // namespace pinning::hip
