// SPDX-License-Identifier: Apache-2.0
#include "cuda_queue.hpp"

#include <thread>

#include "cuda_sleepable.hpp"

namespace pinning::cuda {

// The driver takes an address at which nothing is mapped for the host's, and reads there: a SIGSEGV.
void Queue::copy(Address dst, Address src, std::uint64_t size) {
  for (Address const ptr : {dst, src}) SleepableMemory::refuse_asleep(ptr);
  submit(driver_.cuMemcpyAsync, dst, src, size, stream());
}

void Queue::copy_2d(Address dst, std::uint64_t dst_pitch, Address src, std::uint64_t src_pitch, std::uint64_t width,
                    std::uint64_t height) {
  for (Address const ptr : {dst, src}) SleepableMemory::refuse_asleep(ptr);
  Rows rows{};
  rows.srcMemoryType = rows.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  rows.dstDevice = dst;
  rows.dstPitch = dst_pitch;
  rows.srcDevice = src;
  rows.srcPitch = src_pitch;
  rows.WidthInBytes = width;
  rows.Height = height;
  submit(driver_.cuMemcpy2DAsync_v2, &rows, stream());
}

void Queue::fill(Address ptr, std::uint32_t value, unsigned bytes, std::uint64_t count) {
  SleepableMemory::refuse_asleep(ptr);
  switch (bytes) {
    case 1: return submit(driver_.cuMemsetD8Async, ptr, static_cast<unsigned char>(value), count, stream());
    case 2: return submit(driver_.cuMemsetD16Async, ptr, static_cast<unsigned short>(value), count, stream());
    default: return submit(driver_.cuMemsetD32Async, ptr, value, count, stream());
  }
}

// The comparison wraps: int32(word - value) >= 0.
void Queue::wait_value(Address address, std::uint32_t value) {
  submit(driver_.cuStreamWaitValue32_v2, stream(), address, value, CU_STREAM_WAIT_VALUE_GEQ);
}

// By default the write is ordered after all earlier writes of the stream.
void Queue::write_value(Address address, std::uint32_t value) {
  submit(driver_.cuStreamWriteValue32_v2, stream(), address, value, CU_STREAM_WRITE_VALUE_DEFAULT);
}

void Queue::write_then_wait(Address written, std::uint32_t value, Address awaited, std::uint32_t reached) {
  WordOperation operations[] = {
      {CU_STREAM_MEM_OP_WRITE_VALUE_32, written, value, CU_STREAM_WRITE_VALUE_DEFAULT, 0, 0},
      {CU_STREAM_MEM_OP_WAIT_VALUE_32, awaited, reached, CU_STREAM_WAIT_VALUE_GEQ, 0, 0},
  };
  submit(driver_.cuStreamBatchMemOp_v2, stream(), 2, operations, 0);
}

// The question ends a capture of the stream (driver 580.159, H200).
std::uint64_t Queue::stream_number() {
  unsigned long long number = 0;
  if (!driver_.cuStreamGetId || capture_id() != 0) return 0;
  return result(driver_.cuStreamGetId, stream(), &number) == 0 ? number : 0;
}

std::uint64_t Queue::capture_id() {
  return driver_.cuStreamGetCaptureInfo_v3 ? capture_info().id : StreamQueue::capture_id();
}

Queue::Capture Queue::capture_info() {
  int status = CU_STREAM_CAPTURE_STATUS_NONE;
  std::uint64_t id = 0;
  void* graph = nullptr;
  int const code = result(driver_.cuStreamGetCaptureInfo_v3, stream(), &status, &id, &graph, nullptr, nullptr, nullptr);
  if (code == StreamVendor::capture_implicit || (code == 0 && status == CU_STREAM_CAPTURE_STATUS_INVALIDATED)) {
    return {closed_capture, nullptr};
  }
  if (code != 0 || status == CU_STREAM_CAPTURE_STATUS_NONE) return {0, nullptr};
  return {id, graph};
}

void Queue::keep_with_graph(void* object, void (*release)(void*)) {
  void *const graph = capture_info().graph, *user_object = nullptr;
  int code = CUDA_ERROR_INVALID_VALUE;
  if (graph != nullptr) code = driver_.cuUserObjectCreate(&user_object, object, release, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
  if (code != 0) {
    release(object);
    if (graph == nullptr) throw GraphCapture("no graph is being captured in this stream, or its capture has failed");
    driver_.check_code(driver_.cuUserObjectCreate, code);
  }
  code = driver_.cuGraphRetainUserObject(graph, user_object, 1, CU_GRAPH_USER_OBJECT_MOVE);
  if (code != 0) driver_.cuUserObjectRelease(user_object, 1);  // the last reference: the driver calls `release`
  driver_.check_code(driver_.cuGraphRetainUserObject, code);
}

void Queue::close() {
  StreamQueue::close();
  if (!counted_out_.test_and_set()) --*queues_;
  while (timing_.test_and_set(std::memory_order_acquire)) std::this_thread::yield();  // held for a few driver calls
  kernel_began_.reset();
  kernel_ended_.reset();
  timing_.clear(std::memory_order_release);
  if (own_spares_) own_spares_->destroy_all();
}

}  // namespace pinning::cuda
