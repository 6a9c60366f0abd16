// SPDX-License-Identifier: Apache-2.0
// The functions that programs call in place of the driver's. Copies below the threshold go to the driver, at the cost
// of one comparison.
#include "entry.hpp"

#include <new>
#include <pinning/status_page.hpp>
#include <utility>
#include <vector>

#include "copies.hpp"
#include "driver.hpp"
#include "ledger.hpp"
#include "settings.hpp"
#include "symbols.hpp"

namespace {

using namespace pinning::tool::cuda;
using pinning::Address;
using pinning::CopyPath;
using pinning::count_moved;
using pinning::cuda::CopyAttributes;
using pinning::cuda::Rows;

template <class... Arguments>
int call(Symbol symbol, Arguments... arguments) {
  auto* function = driver_functions[symbol].load(std::memory_order_acquire);
  if (function == nullptr) [[unlikely]] function = driver_function(symbol);
  if (function == nullptr) return not_initialized;
  return reinterpret_cast<int (*)(Arguments...)>(function)(arguments...);
}

/// Stage a copy or call `driver`, the driver's own copy, and note the outcome.
template <class Driver>
[[gnu::noinline]] int copy_watched(Symbol symbol, Request request, Driver const& driver) {
  driver_function(symbol);  // begins the report, also of a program that is linked to the driver
  auto const began = settings.watches ? pinning::tool::now() : pinning::tool::Moment();
  Outcome outcome = Outcome::small;
  if (request.size() >= settings.min_bytes) {
    outcome = Outcome::staged;
    decide({&request, 1}, &outcome);
    stage({&request, 1}, &outcome);
  }
  int code = success;
  if (outcome != Outcome::staged) {
    code = driver();
    if (code == invalid_value && split(request)) outcome = Outcome::split, code = success;
  }
  if (code == success) note({&request, 1}, &outcome, began);
  return code;
}

template <class MakeRequest, class Driver>
inline int copy(Symbol symbol, std::size_t size, MakeRequest const& request, Driver const& driver) {
  if (size >= settings.min_bytes || settings.watches) [[unlikely]] return copy_watched(symbol, request(), driver);
  int code = driver();
  if (code == invalid_value && split(request())) [[unlikely]] code = success;
  if (code == success) count_moved(CopyPath::small, size);
  return code;
}

Address address_of(void const* ptr) noexcept { return reinterpret_cast<Address>(ptr); }

std::uintptr_t handle(void* stream, std::uintptr_t null_stream) noexcept {
  return stream != nullptr ? reinterpret_cast<std::uintptr_t>(stream) : null_stream;
}

// ---- the variants of each function ----

template <Symbol symbol, std::uintptr_t null_stream>
int to_device(unsigned long long dst, void const* src, std::size_t size) {
  return copy(
      symbol, size, [&] { return Request{Request::Toward::device, dst, address_of(src), size, null_stream, true}; },
      [&] { return call(symbol, dst, src, size); });
}

template <Symbol symbol, std::uintptr_t null_stream>
int to_device_async(unsigned long long dst, void const* src, std::size_t size, void* stream) {
  return copy(
      symbol, size,
      [&] { return Request{Request::Toward::device, dst, address_of(src), size, handle(stream, null_stream)}; },
      [&] { return call(symbol, dst, src, size, stream); });
}

template <Symbol symbol, std::uintptr_t null_stream>
int to_host(void* dst, unsigned long long src, std::size_t size) {
  return copy(
      symbol, size, [&] { return Request{Request::Toward::host, address_of(dst), src, size, null_stream, true}; },
      [&] { return call(symbol, dst, src, size); });
}

template <Symbol symbol, std::uintptr_t null_stream>
int to_host_async(void* dst, unsigned long long src, std::size_t size, void* stream) {
  return copy(
      symbol, size,
      [&] { return Request{Request::Toward::host, address_of(dst), src, size, handle(stream, null_stream)}; },
      [&] { return call(symbol, dst, src, size, stream); });
}

template <Symbol symbol, std::uintptr_t null_stream>
int either(unsigned long long dst, unsigned long long src, std::size_t size) {
  return copy(
      symbol, size, [&] { return Request{Request::Toward::either, dst, src, size, null_stream, true}; },
      [&] { return call(symbol, dst, src, size); });
}

template <Symbol symbol, std::uintptr_t null_stream>
int either_async(unsigned long long dst, unsigned long long src, std::size_t size, void* stream) {
  return copy(
      symbol, size, [&] { return Request{Request::Toward::either, dst, src, size, handle(stream, null_stream)}; },
      [&] { return call(symbol, dst, src, size, stream); });
}

// An end of CUDA_MEMCPY2D: its memory type, and the address of its first byte (0 for an array or null).
enum : int { host_type = 1, device_type = 2, unified_type = 4 };

Address first_byte(int type, void const* host, unsigned long long device, std::size_t pitch, std::size_t y, std::size_t x) {
  if (type != host_type && type != device_type && type != unified_type) return 0;
  Address const base = type == host_type ? address_of(host) : device;
  return base != 0 ? base + y * pitch + x : 0;
}

/// Otherwise the driver refuses the copy.
bool fits(std::size_t width, std::size_t x, std::size_t pitch) {
  constexpr std::size_t most_pitch = 0x7fffffff;  // CU_DEVICE_ATTRIBUTE_MAX_PITCH of all devices
  return x <= pitch && width <= pitch - x && pitch <= most_pitch;
}

/// Rows that are contiguous at both ends become one. A width of 0 means that the copy cannot be staged: the driver has an
/// error for it, or arrays.
Request request_of(Rows const& rows, std::uintptr_t stream, bool synchronous) {
  using Toward = Request::Toward;
  Request request{Toward::either, 0, 0, 0, stream, synchronous};
  request.dst = first_byte(rows.dstMemoryType, rows.dstHost, rows.dstDevice, rows.dstPitch, rows.dstY, rows.dstXInBytes);
  request.src = first_byte(rows.srcMemoryType, rows.srcHost, rows.srcDevice, rows.srcPitch, rows.srcY, rows.srcXInBytes);
  bool const valid = request.dst != 0 && request.src != 0 && rows.Height > 0 &&
                     fits(rows.WidthInBytes, rows.dstXInBytes, rows.dstPitch) &&
                     fits(rows.WidthInBytes, rows.srcXInBytes, rows.srcPitch);
  if (!valid) return request;
  request.width = rows.WidthInBytes;
  request.height = rows.Height;
  request.dst_pitch = rows.dstPitch;
  request.src_pitch = rows.srcPitch;
  if (request.wraps()) {
    request.width = 0;
  } else if (rows.Height == 1 || (rows.WidthInBytes == rows.dstPitch && rows.WidthInBytes == rows.srcPitch)) {
    request.width *= std::exchange(request.height, 1);
    request.dst_pitch = request.src_pitch = 0;
  }
  return request;
}

template <class Driver>
int copy_rows(Symbol symbol, Rows const* rows, std::uintptr_t stream, bool synchronous, Driver const& driver) {
  if (rows == nullptr) return driver();
  Request const request = request_of(*rows, stream, synchronous);
  return request.width == 0 ? driver() : copy(symbol, request.size(), [&] { return request; }, driver);
}

template <Symbol symbol, std::uintptr_t null_stream>
int in_rows(Rows const* rows) {
  return copy_rows(symbol, rows, null_stream, true, [&] { return call(symbol, rows); });
}

template <Symbol symbol, std::uintptr_t null_stream>
int in_rows_async(Rows const* rows, void* stream) {
  return copy_rows(symbol, rows, handle(stream, null_stream), false, [&] { return call(symbol, rows, stream); });
}

// ---- with attributes; and in batches, whose copies may be done in any order ----

enum : int { stream_order = 1, any_order = 3 };  // CUmemcpySrcAccessOrder
bool is_valid(CopyAttributes const& attributes) noexcept {
  return attributes.srcAccessOrder >= stream_order && attributes.srcAccessOrder <= any_order;
}

Request request_of(unsigned long long dst, unsigned long long src, std::size_t size, std::uintptr_t stream,
                   CopyAttributes const& attributes) {
  Request request{Request::Toward::either, dst, src, size, stream};
  request.early = attributes.srcAccessOrder != stream_order;
  return request;
}

template <Symbol symbol, std::uintptr_t null_stream>
int with_attributes(unsigned long long dst, unsigned long long src, std::size_t size, CopyAttributes* attributes, void* stream) {
  auto const driver = [&] { return call(symbol, dst, src, size, attributes, stream); };
  if (attributes == nullptr || !is_valid(*attributes)) return driver();  // with its error
  auto const request = [&] { return request_of(dst, src, size, handle(stream, null_stream), *attributes); };
  return copy(symbol, size, request, driver);
}

struct Batch {
  unsigned long long *dsts, *srcs;
  std::size_t *sizes, count;
  CopyAttributes* attributes;
  std::size_t *firsts, kinds;  // the first copy of each attribute; the number of attributes

  bool is_valid() const noexcept {
    if (count == 0 || kinds == 0 || kinds > count || !dsts || !srcs || !sizes || !attributes || !firsts) return false;
    for (std::size_t i = 0; i < kinds; ++i) {
      bool const ascends = i == 0 ? firsts[0] == 0 : firsts[i] > firsts[i - 1] && firsts[i] < count;
      if (!ascends || !::is_valid(attributes[i])) return false;
    }
    return true;
  }
};

/// Smaller copies of a batch are left to the driver without a check.
constexpr std::size_t least_of_batch = 256 << 10;

/// The part of a batch that is left to the driver.
struct Rest {
  std::vector<unsigned long long> dsts, srcs;
  std::vector<std::size_t> sizes, firsts, places;  // places: in the batch
  std::vector<CopyAttributes> attributes;
  std::size_t kind = ~std::size_t{0};

  void add(Batch const& batch, std::size_t place, std::size_t its_kind) {
    if (its_kind != kind) attributes.push_back(batch.attributes[kind = its_kind]), firsts.push_back(places.size());
    dsts.push_back(batch.dsts[place]), srcs.push_back(batch.srcs[place]), sizes.push_back(batch.sizes[place]);
    places.push_back(place);
  }
  Batch batch() {
    return {dsts.data(), srcs.data(), sizes.data(), places.size(), attributes.data(), firsts.data(), firsts.size()};
  }
};

template <class Driver>
[[gnu::noinline]] int copy_batch_watched(Symbol symbol, Batch const& batch, std::uintptr_t stream, std::size_t* failed,
                                         Driver const& driver, bool stages) {
  driver_function(symbol);  // begins the report
  auto const began = settings.watches ? pinning::tool::now() : pinning::tool::Moment();
  std::vector<Request> requests;
  std::vector<Outcome> outcomes(batch.count, Outcome::small);
  std::vector<std::size_t> kinds;
  for (std::size_t i = 0, kind = 0; i < batch.count; ++i) {
    if (kind + 1 < batch.kinds && batch.firsts[kind + 1] == i) ++kind;
    kinds.push_back(kind);
    requests.push_back(request_of(batch.dsts[i], batch.srcs[i], batch.sizes[i], stream, batch.attributes[kind]));
    if (stages && batch.sizes[i] >= least_of_batch) outcomes[i] = Outcome::staged;
  }
  if (stages) decide(requests, outcomes.data());
  std::vector<bool> done(batch.count);
  auto const leave_rest = [&] {
    Rest rest;
    for (std::size_t i = 0; i < batch.count; ++i) {
      if (outcomes[i] != Outcome::staged && !done[i]) rest.add(batch, i, kinds[i]), done[i] = true;
    }
    int const code = rest.places.empty() ? success : driver(rest.batch());
    if (code != success && failed != nullptr && *failed < rest.places.size()) *failed = rest.places[*failed];
    return code;
  };
  // The driver first: of a batch that it refuses, nothing is written that it does not write.
  int code = leave_rest();
  if (code == success && stages) stage(requests, outcomes.data()), code = leave_rest();
  if (code == success) note(requests, outcomes.data(), began);
  return code;
}

/// Batches whose arguments are invalid go to the driver, which refuses them.
template <class Driver>
int copy_batch(Symbol symbol, Batch const& batch, std::uintptr_t stream, std::size_t* failed, Driver const& driver) {
  if (stream == legacy_stream || !batch.is_valid()) return driver(batch);
  std::size_t all = 0, large = 0;
  for (std::size_t i = 0; i < batch.count; ++i) {
    all += batch.sizes[i];
    if (batch.sizes[i] >= least_of_batch) large += batch.sizes[i];
  }
  bool const stages = large >= settings.min_bytes;
  if (stages || settings.watches) [[unlikely]] {
    try {
      return copy_batch_watched(symbol, batch, stream, failed, driver, stages);
    } catch (std::bad_alloc const&) {
    }
  }
  int const code = driver(batch);
  if (code == success) count_moved(CopyPath::small, all);
  return code;
}

template <Symbol symbol, std::uintptr_t null_stream>
int in_batch(unsigned long long* dsts, unsigned long long* srcs, std::size_t* sizes, std::size_t count,
             CopyAttributes* attributes, std::size_t* firsts, std::size_t kinds, void* stream) {
  auto const driver = [&](Batch const& some) {
    return call(symbol, some.dsts, some.srcs, some.sizes, some.count, some.attributes, some.firsts, some.kinds, stream);
  };
  Batch const batch{dsts, srcs, sizes, count, attributes, firsts, kinds};
  return copy_batch(symbol, batch, handle(stream, null_stream), nullptr, driver);
}

template <Symbol symbol, std::uintptr_t null_stream>
int in_first_batch(unsigned long long* dsts, unsigned long long* srcs, std::size_t* sizes, std::size_t count,
                   CopyAttributes* attributes, std::size_t* firsts, std::size_t kinds, std::size_t* failed, void* stream) {
  auto const driver = [&](Batch const& some) {
    return call(symbol, some.dsts, some.srcs, some.sizes, some.count, some.attributes, some.firsts, some.kinds, failed, stream);
  };
  Batch const batch{dsts, srcs, sizes, count, attributes, firsts, kinds};
  return copy_batch(symbol, batch, handle(stream, null_stream), failed, driver);
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

PINNING_FORMS(cuMemcpyWithAttributesAsync, with_attributes,
              (unsigned long long dst, unsigned long long src, std::size_t size, CopyAttributes* attributes, void* stream),
              (dst, src, size, attributes, stream), _ptsz)
PINNING_FORMS(cuMemcpyBatchAsync, in_first_batch,
              (unsigned long long* dsts, unsigned long long* srcs, std::size_t* sizes, std::size_t count,
               CopyAttributes* attributes, std::size_t* firsts, std::size_t kinds, std::size_t* failed, void* stream),
              (dsts, srcs, sizes, count, attributes, firsts, kinds, failed, stream), _ptsz)
PINNING_FORMS(cuMemcpyBatchAsync_v2, in_batch,
              (unsigned long long* dsts, unsigned long long* srcs, std::size_t* sizes, std::size_t count,
               CopyAttributes* attributes, std::size_t* firsts, std::size_t kinds, void* stream),
              (dsts, srcs, sizes, count, attributes, firsts, kinds, stream), _ptsz)

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
