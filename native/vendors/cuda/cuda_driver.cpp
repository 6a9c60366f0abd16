// SPDX-License-Identifier: Apache-2.0
#include "cuda_driver.hpp"

namespace pinning::cuda {

namespace {

char const* advice(int code) {
  switch (code) {
    case 3: return "CUDA does not work in a fork of a process that uses it: start processes by exec, as "
                   "multiprocessing's 'spawn' method does";
    case 34: return "the libcuda.so.1 found is the toolkit's stub: put the NVIDIA driver's before it on "
                    "the library path";
    case 100: return "no NVIDIA GPU is visible: compare `nvidia-smi -L` with the variable CUDA_VISIBLE_DEVICES";
    case 803: return "the NVIDIA kernel module and libcuda.so.1 are of different versions: reboot, or install one "
                     "version of both";
    default: return "see whether `nvidia-smi` works";
  }
}

}  // namespace

Driver::Driver() : StreamVendor("CUDA"), library_({"libcuda.so.1"}, "install the NVIDIA driver, which provides it") {
  PINNING_CUDA_FUNCTIONS(PINNING_LOOK_UP)
  library_.get_if_there(cuCtxGetId);
  library_.get_if_there(cuStreamGetId);
  library_.get_if_there(cuStreamGetCaptureInfo_v3);
  cuMemcpyBatchAsync_v1.symbol = "cuMemcpyBatchAsync";
  library_.get_if_there(cuMemcpyBatchAsync_v1);
  library_.get_if_there(cuMemcpyBatchAsync_v2);
  streams_ = {
      .stream_create = cuStreamCreate,
      .stream_destroy = cuStreamDestroy_v2,
      .stream_query = cuStreamQuery,
      .stream_synchronize = cuStreamSynchronize,
      .stream_wait_event = cuStreamWaitEvent,
      .launch_host_function = cuLaunchHostFunc,
      .event_create = cuEventCreate,
      .event_destroy = cuEventDestroy_v2,
      .event_query = cuEventQuery,
      .event_synchronize = cuEventSynchronize,
      .event_record = cuEventRecord,
      .event_elapsed = cuEventElapsedTime,
      .stream_is_capturing = cuStreamIsCapturing,
      .thread_exchange_capture_mode = cuThreadExchangeStreamCaptureMode,
  };
  // The process that called cuInit first: in a fork of it another cuInit may crash (driver 580), even if the first one
  // has failed or was under way in another thread.
  Only<Started const>::get([] { return std::make_unique<Started const>("CUDA"); }).check();
  int const code = cuInit(0);
  if (code != 0) {
    throw Unavailable("the NVIDIA driver does not start: " + failed("cuInit", code).text() + "; " + advice(code));
  }
}

Driver const& Driver::get() {
  Driver const& driver = Only<Driver>::get([] { return std::unique_ptr<Driver>(new Driver); });
  driver.started().check();
  return driver;
}

unsigned Driver::device_count() const {
  int count = 0;
  check(cuDeviceGetCount, &count);
  return static_cast<unsigned>(count);
}

VendorLibrary Driver::library() const {
  int version = 0;
  check(cuDriverGetVersion, &version);
  return {library_.name(), std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10)};
}

VendorCall Driver::failed(std::string function, int code, std::string advice) const {
  char const* name = nullptr;
  bool const known = cuGetErrorName(code, &name) == 0 && name != nullptr;
  return {std::move(function), code, known ? name : "unknown", std::move(advice), code == CUDA_ERROR_OUT_OF_MEMORY};
}

Where Driver::enter(Where context) const {
  void* now = nullptr;
  if (cuCtxGetCurrent(&now) == 0 && reinterpret_cast<Where>(now) == context) return 0;
  check(cuCtxPushCurrent_v2, reinterpret_cast<void*>(context));
  return context;
}

// The code is ignored: it may be an error of earlier asynchronous work.
void Driver::leave(Where pushed) const noexcept {
  void* popped;
  if (pushed != 0) cuCtxPopCurrent_v2(&popped);
}

}  // namespace pinning::cuda
