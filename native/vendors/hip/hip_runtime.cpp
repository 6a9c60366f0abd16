// SPDX-License-Identifier: Apache-2.0
#include "hip_runtime.hpp"

#include "../amd.hpp"

namespace pinning::hip {

namespace {

constexpr Where unchanged = ~Where{0};

}  // namespace

Runtime::Runtime()
    : StreamVendor("HIP"),
      library_({"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5",
                in_rocm("libamdhip64.so")},
               "install the HIP runtime of ROCm, and put its folder on LD_LIBRARY_PATH or say in ROCM_PATH where ROCm "
               "is") {
  PINNING_HIP_FUNCTIONS(PINNING_LOOK_UP)
  library_.get_if_there(hipMemcpyBatchAsync);
  streams_ = {
      .stream_create = hipStreamCreateWithFlags,
      .stream_destroy = hipStreamDestroy,
      .stream_query = hipStreamQuery,
      .stream_synchronize = hipStreamSynchronize,
      .stream_wait_event = hipStreamWaitEvent,
      .launch_host_function = hipLaunchHostFunc,
      .event_create = hipEventCreateWithFlags,
      .event_destroy = hipEventDestroy,
      .event_query = hipEventQuery,
      .event_synchronize = hipEventSynchronize,
      .event_record = hipEventRecord,
      .event_elapsed = hipEventElapsedTime,
      .stream_is_capturing = hipStreamIsCapturing,
      .thread_exchange_capture_mode = hipThreadExchangeStreamCaptureMode,
  };
}

void Runtime::start() {
  try {
    check(hipInit, 0);
    check(hipGetDeviceCount, &count);
  } catch (VendorError const& error) {
    auto const problem = kfd_problem();
    throw Unavailable("the HIP runtime finds no AMD GPU: " + error.call.text() + "; " +
                      (problem.empty() ? "compare `rocminfo` with the variables HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES"
                           : problem));
  }
}

Runtime const& Runtime::get() {
  Runtime const& runtime = Only<Runtime>::get([] {
    auto runtime = std::unique_ptr<Runtime>(new Runtime);
    runtime->start();
    return runtime;
  });
  runtime.started().check();
  return runtime;
}

VendorLibrary Runtime::library() {
  if (Only<Runtime>::if_made() != nullptr) get();  // throws in a fork
  Runtime const loaded;
  int version = 0;
  loaded.check(loaded.hipRuntimeGetVersion, &version);
  return {loaded.library_.name(), std::to_string(version / 10'000'000) + "." + std::to_string(version / 100'000 % 100) +
                                      "." + std::to_string(version % 100'000)};
}

VendorCall Runtime::failed(std::string function, int code, std::string advice) const {
  forget_error();  // other code checks it after its kernels
  char const* const name = hipGetErrorName(code);
  return {std::move(function), code, name != nullptr ? name : "unknown", std::move(advice), code == hipErrorOutOfMemory};
}

Where Runtime::enter(Where device) const {
  int before = 0;
  check(hipGetDevice, &before);
  if (static_cast<Where>(before) == device) return unchanged;
  check(hipSetDevice, static_cast<int>(device));
  return static_cast<Where>(before);
}

void Runtime::leave(Where before) const noexcept {
  if (before != unchanged && hipSetDevice(static_cast<int>(before)) != 0) forget_error();
}

void Runtime::forget_error() const noexcept { hipGetLastError(); }

}  // namespace pinning::hip
