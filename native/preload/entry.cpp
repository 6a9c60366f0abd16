// SPDX-License-Identifier: Apache-2.0
// The driver's functions as programs call them in this library. Below the threshold they are the driver's, at the cost of a
// comparison.
#include "entry.hpp"

#include <algorithm>

#include "copies.hpp"
#include "driver.hpp"
#include "ledger.hpp"
#include "settings.hpp"
#include "symbols.hpp"

namespace {

using namespace pinning::preload;
using pinning::Address;
using pinning::cuda::Rows;

template <class... Arguments>
int call(Symbol symbol, Arguments... arguments) {
  auto* function = driver_functions[symbol].load(std::memory_order_acquire);
  if (function == nullptr) [[unlikely]] function = driver_function(symbol);
  if (function == nullptr) return not_initialized;
  return reinterpret_cast<int (*)(Arguments...)>(function)(arguments...);
}

/// `driver`: the driver's own copy.
template <class Driver>
[[gnu::noinline]] int copy_watched(Request request, Driver const& driver) {
  auto const began = settings.watches ? pinning::omp::now() : pinning::omp::Moment();
  Outcome outcome = request.size() >= settings.min_bytes ? stage(request) : Outcome::small;
  int code = success;
  if (outcome != Outcome::staged) {
    code = driver();
    if (code == invalid_value && split(request)) outcome = Outcome::split, code = success;
  }
  if (settings.watches && code == success) note(request, outcome, began);
  return code;
}

template <class MakeRequest, class Driver>
inline int copy(std::size_t size, MakeRequest const& request, Driver const& driver) {
  if (size >= settings.min_bytes || settings.watches) [[unlikely]] return copy_watched(request(), driver);
  int const code = driver();
  if (code == invalid_value) [[unlikely]] return split(request()) ? success : code;
  return code;
}

Address address_of(void const* ptr) noexcept { return reinterpret_cast<Address>(ptr); }

std::uintptr_t handle(void* stream, std::uintptr_t null_stream) noexcept {
  return stream != nullptr ? reinterpret_cast<std::uintptr_t>(stream) : null_stream;
}

// ---- the forms of each ----

template <Symbol symbol, std::uintptr_t null_stream>
int to_device(unsigned long long dst, void const* src, std::size_t size) {
  return copy(
      size, [&] { return Request{Request::Toward::device, dst, address_of(src), size, null_stream, true}; },
      [&] { return call(symbol, dst, src, size); });
}

template <Symbol symbol, std::uintptr_t null_stream>
int to_device_async(unsigned long long dst, void const* src, std::size_t size, void* stream) {
  return copy(
      size, [&] { return Request{Request::Toward::device, dst, address_of(src), size, handle(stream, null_stream)}; },
      [&] { return call(symbol, dst, src, size, stream); });
}

template <Symbol symbol, std::uintptr_t null_stream>
int to_host(void* dst, unsigned long long src, std::size_t size) {
  return copy(
      size, [&] { return Request{Request::Toward::host, address_of(dst), src, size, null_stream, true}; },
      [&] { return call(symbol, dst, src, size); });
}

template <Symbol symbol, std::uintptr_t null_stream>
int to_host_async(void* dst, unsigned long long src, std::size_t size, void* stream) {
  return copy(
      size, [&] { return Request{Request::Toward::host, address_of(dst), src, size, handle(stream, null_stream)}; },
      [&] { return call(symbol, dst, src, size, stream); });
}

template <Symbol symbol, std::uintptr_t null_stream>
int either(unsigned long long dst, unsigned long long src, std::size_t size) {
  return copy(
      size, [&] { return Request{Request::Toward::either, dst, src, size, null_stream, true}; },
      [&] { return call(symbol, dst, src, size); });
}

template <Symbol symbol, std::uintptr_t null_stream>
int either_async(unsigned long long dst, unsigned long long src, std::size_t size, void* stream) {
  return copy(
      size, [&] { return Request{Request::Toward::either, dst, src, size, handle(stream, null_stream)}; },
      [&] { return call(symbol, dst, src, size, stream); });
}

// An end of CUDA_MEMCPY2D: its memory type, and the address of its first byte, 0 of an array.
enum : int { host_type = 1, device_type = 2, unified_type = 4 };

Address first_byte(int type, void const* host, unsigned long long device, std::size_t pitch, std::size_t y, std::size_t x) {
  if (type != host_type && type != device_type && type != unified_type) return 0;
  return (type == host_type ? address_of(host) : device) + y * pitch + x;
}

/// Rows that lie behind one another at both ends are one. A width of 0 is what cannot be staged.
Request request_of(Rows const& rows, std::uintptr_t stream, bool synchronous) {
  using Toward = Request::Toward;
  Request request{Toward::either, 0, 0, 0, stream, synchronous};
  request.dst = first_byte(rows.dstMemoryType, rows.dstHost, rows.dstDevice, rows.dstPitch, rows.dstY, rows.dstXInBytes);
  request.src = first_byte(rows.srcMemoryType, rows.srcHost, rows.srcDevice, rows.srcPitch, rows.srcY, rows.srcXInBytes);
  bool const valid = request.dst != 0 && request.src != 0 && rows.Height > 0 &&
                     (rows.Height == 1 || (rows.WidthInBytes <= rows.dstPitch && rows.WidthInBytes <= rows.srcPitch));
  if (!valid) return request;
  request.width = rows.WidthInBytes;
  bool const one = rows.Height == 1 || (rows.WidthInBytes == rows.dstPitch && rows.WidthInBytes == rows.srcPitch);
  if (one) {
    request.width *= rows.Height;
  } else {
    request.height = rows.Height;
    request.dst_pitch = rows.dstPitch;
    request.src_pitch = rows.srcPitch;
  }
  return request;
}

template <class Driver>
int copy_rows(Rows const* rows, std::uintptr_t stream, bool synchronous, Driver const& driver) {
  if (rows == nullptr || rows->WidthInBytes * rows->Height < settings.min_bytes) return driver();
  Request const request = request_of(*rows, stream, synchronous);
  return request.width == 0 ? driver() : copy_watched(request, driver);
}

template <Symbol symbol, std::uintptr_t null_stream>
int in_rows(Rows const* rows) {
  return copy_rows(rows, null_stream, true, [&] { return call(symbol, rows); });
}

template <Symbol symbol, std::uintptr_t null_stream>
int in_rows_async(Rows const* rows, void* stream) {
  return copy_rows(rows, handle(stream, null_stream), false, [&] { return call(symbol, rows, stream); });
}

constexpr std::uint64_t per_thread_flag = 2;  // CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM

void answer(int code, char const* symbol, void** function, int version, std::uint64_t flags) {
  if (code != success || symbol == nullptr || function == nullptr || *function == nullptr) return;
  *function = in_place_of(*function, symbol, version, (flags & per_thread_flag) != 0);
}

}  // namespace

#define PINNING_FORMS(exported, form, PARAMETERS, ARGUMENTS, per_thread)                                           \
  int exported PARAMETERS { return form<exported##_symbol, legacy_stream> ARGUMENTS; }                             \
  int exported##per_thread PARAMETERS { return form<exported##per_thread##_symbol, per_thread_stream> ARGUMENTS; }

extern "C" {

PINNING_FORMS(cuMemcpyHtoD_v2, to_device, (unsigned long long dst, void const* src, std::size_t size), (dst, src, size), _ptds)
PINNING_FORMS(cuMemcpyDtoH_v2, to_host, (void* dst, unsigned long long src, std::size_t size), (dst, src, size), _ptds)
PINNING_FORMS(cuMemcpy, either, (unsigned long long dst, unsigned long long src, std::size_t size), (dst, src, size), _ptds)
PINNING_FORMS(cuMemcpyHtoDAsync_v2, to_device_async,
              (unsigned long long dst, void const* src, std::size_t size, void* stream), (dst, src, size, stream), _ptsz)
PINNING_FORMS(cuMemcpyDtoHAsync_v2, to_host_async,
              (void* dst, unsigned long long src, std::size_t size, void* stream), (dst, src, size, stream), _ptsz)
PINNING_FORMS(cuMemcpyAsync, either_async,
              (unsigned long long dst, unsigned long long src, std::size_t size, void* stream), (dst, src, size, stream), _ptsz)
PINNING_FORMS(cuMemcpy2D_v2, in_rows, (Rows const* rows), (rows), _ptds)
PINNING_FORMS(cuMemcpy2DUnaligned_v2, in_rows, (Rows const* rows), (rows), _ptds)
PINNING_FORMS(cuMemcpy2DAsync_v2, in_rows_async, (Rows const* rows, void* stream), (rows, stream), _ptsz)

int cuGetProcAddress(char const* symbol, void** function, int version, std::uint64_t flags) {
  int const code = call(cuGetProcAddress_symbol, symbol, function, version, flags);
  answer(code, symbol, function, version, flags);
  return code;
}

int cuGetProcAddress_v2(char const* symbol, void** function, int version, std::uint64_t flags, int* status) {
  int const code = call(cuGetProcAddress_v2_symbol, symbol, function, version, flags, status);
  answer(code, symbol, function, version, flags);
  return code;
}

}  // extern "C"
