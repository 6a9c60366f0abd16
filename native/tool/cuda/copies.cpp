// SPDX-License-Identifier: Apache-2.0
// Large copies of pageable memory, by the staging engine of libpinning. If a copy cannot be staged, it is the driver's
// own, with its result.
//
// Pinned blocks belong to a context, so each context that copies has its own device of libpinning: no primary context
// is created or retained. Contexts and streams are identified by their driver IDs, because the handle of a destroyed
// one may be reused.
//
// Locks: one per stream, held while a copy is submitted; driver calls that block meanwhile depend only on threads of
// libpinning that take no such lock (docs/design/staging.md). One for the streams of a context, for some instructions.
#include "copies.hpp"

#include <sched.h>
#include <time.h>

#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <pinning/copy_plan.hpp>
#include <pinning/process.hpp>
#include <pinning/shared_map.hpp>
#include <utility>
#include <vector>

#include "../../base/spin_time.hpp"
#include "../this_process.hpp"
#include "../uncancelled.hpp"
#include "driver.hpp"
#include "settings.hpp"

namespace pinning::tool::cuda {

namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t ring_bytes_of_context = 256 << 20;
/// Shorter rows are left to the driver.
constexpr std::uint64_t least_row = 64 << 10;
/// Pinned blocks take 20 ms to allocate, so a context gets them only after copies of this many times the threshold.
constexpr std::uint64_t thresholds_before_rings = 8;
/// After so many consecutive failures, a context stages no more copies.
constexpr unsigned most_failures = 3;

constexpr std::chrono::microseconds yields_for = 2ms, nap = 50us;
/// The kernel prolongs a nap to about 100 us.
constexpr unsigned naps_before_look = 200;

/// During its lifetime, calls of this thread invalidate no capture.
class BesideCaptures {
 public:
  explicit BesideCaptures(Driver const& driver) noexcept : driver_(driver) { exchange(); }
  ~BesideCaptures() { exchange(); }
  BesideCaptures(BesideCaptures const&) = delete;

 private:
  void exchange() noexcept { driver_.cuThreadExchangeStreamCaptureMode(&mode_); }

  Driver const& driver_;
  int mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED
};

bool is_captured(Driver const& driver, std::uintptr_t stream) noexcept {
  int status = 0;
  return driver.cuStreamIsCapturing(reinterpret_cast<void*>(stream), &status) != success || status != 0;
}

/// A stream; `mutex` serializes submissions to it.
struct Stream {
  explicit Stream(std::unique_ptr<VendorQueue> adopted) : queue(std::move(adopted)) {}

  std::mutex mutex;
  std::unique_ptr<VendorQueue> const queue;
};

class Context {
 public:
  Context(void* handle, std::uint64_t number)
      : number(number), device_(cuda_device_of_context(reinterpret_cast<std::uintptr_t>(handle))) {}

  std::uint64_t const number;
  std::atomic<std::uint64_t> asked_for = 0;  // bytes that could have been staged
  std::atomic<unsigned> failures = 0;        // consecutive

  /// The rings, shared with Python's copies in the context. They refer to the device, so only a listed context has some:
  /// of two that threads make at once, one is destroyed.
  Staging& staging() { return pinning::staging(*device_); }

  /// Find or adopt a stream. If there are many, those in which no copy is being submitted are dropped.
  std::shared_ptr<Stream> stream(std::uintptr_t handle, std::uint64_t stream_number) {
    constexpr std::size_t many = 256;
    {
      std::lock_guard const guard(mutex_);
      if (auto const known = streams_.find(stream_number); known != streams_.end()) return known->second;
    }
    auto adopted = std::make_shared<Stream>(device_->adopt_queue(handle));
    std::lock_guard const guard(mutex_);
    if (streams_.size() >= many) std::erase_if(streams_, [](auto const& stream) { return stream.second.use_count() == 1; });
    return streams_.try_emplace(stream_number, std::move(adopted)).first->second;
  }

 private:
  std::unique_ptr<VendorDevice> const device_;
  std::mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<Stream>> streams_;  // by driver ID
};

/// Never destroyed: programs copy until they exit.
struct Contexts {
  unsigned const made_in = generation();
  GrowingList<std::unique_ptr<Context>> list;

  Context& get(void* handle, std::uint64_t number) {
    auto const same = [&](std::unique_ptr<Context> const& context) { return context->number == number; };
    if (auto* const known = list.find(same)) return **known;
    return *list.add(std::make_unique<Context>(handle, number), same);
  }
};
using TheContexts = Only<Contexts>;

/// Whether the stream may still execute what was submitted to it.
bool is_alive(Driver const& driver, std::uintptr_t stream) noexcept {
  auto* const handle = reinterpret_cast<void*>(stream);
  auto const is_of_capture = [](int code) { return code >= 900 && code <= 910; };
  // A capture may have begun meanwhile. A query of its stream would end it.
  int status = 0, code = driver.cuStreamIsCapturing(handle, &status);
  if (is_of_capture(code) || (code == success && status != 0)) return true;
  BesideCaptures const beside(driver);
  code = driver.cuStreamQuery(handle);
  return code == success || code == not_ready || is_of_capture(code);
}

/// Wait until the program may go on; false if the device fails before. A synchronous call to the device leaves nothing
/// in flight: work of other streams, which the program does not order behind this one, may read the bytes.
bool wait_until_over(Staged& staged, Driver const& driver, Request const& request) noexcept {
  bool const arrives = request.synchronous && request.toward == Request::Toward::device;
  auto const over = [&] { return arrives ? staged.arrived() : staged.moved(); };
  unsigned naps = 0;
  for (SpinTime time; !over();) {
    if (time.lasts() < yields_for) {
      sched_yield();
      continue;
    }
    timespec const pause{0, std::chrono::nanoseconds(nap).count()};
    nanosleep(&pause, nullptr);
    if (++naps % naps_before_look == 0 && !is_alive(driver, request.stream)) return over();
  }
  return true;
}

/// What this process has locked; and any device, because the driver knows an address without a context.
struct Memory {
  VendorDevice& device = vendor_device("cuda:0");
  PinnedMap& map = shared_map(device).made();

  bool is_of_device(Address ptr) {
    auto const info = device.memory_info(ptr);
    return info && info->kind == MemoryKind::device;
  }
};

/// The planner's answer for a copy between memory of the host and of a device, or within the host; nothing for any other.
/// Sets the direction. Throws InvalidRange for a range that is not of one allocation, or what the vendor throws.
std::optional<CopyPlan> plan(Memory& memory, Request& request) {
  using Toward = Request::Toward;
  MemoryRanges ranges(memory.map, memory.device);
  Span const dst{request.dst, request.dst + request.extent(request.dst_pitch)};
  Span const src{request.src, request.src + request.extent(request.src_pitch)};
  Direction const direction = direction_of(ranges, dst, src);
  bool const to_device = direction == Direction::to_device, in_host = direction == Direction::in_host;
  auto const& [host, other] = to_device ? std::pair(src, dst) : std::pair(dst, src);
  if (!in_host) {
    if ((!to_device && direction != Direction::to_host) || host.start == 0) return std::nullopt;
    Toward const toward = to_device ? Toward::device : Toward::host;
    if (request.toward != Toward::either && request.toward != toward) return std::nullopt;
    request.toward = toward;
    // Managed memory is left to the driver. The last of the addresses that it has reserved may not be mapped.
    if (!memory.is_of_device(other.start) || !memory.is_of_device(other.end - 1)) return std::nullopt;
  }
  CopyLimits limits;
  limits.stage_to_device = limits.stage_to_host = 1;
  return plan_copy(ranges, {request.dst, request.src, host.end - host.start, direction}, true, limits);
}

/// Return `staged` if the copy is between large pageable memory and a device, otherwise why not. Sets the direction.
Outcome could_be(Request& request) noexcept {
  if (request.wraps()) return Outcome::other_memory;  // the driver refuses it
  try {
    Memory memory;
    auto const planned = plan(memory, request);
    if (!planned || planned->reason == Reason::in_host) return Outcome::other_memory;
    // A copy that begins in registered memory must not leave it; one that begins in pageable memory may cross borders.
    if (planned->steps[0].path == CopyPath::direct) {
      return planned->steps.size() == 1 ? Outcome::direct : Outcome::pinned_in_part;
    }
    if (request.height > 1 && request.width < least_row) return Outcome::small;
    if (!settings.stages) return Outcome::off;
    return planned->path == CopyPath::staged ? Outcome::staged : Outcome::one_processor;
  } catch (InvalidRange const&) {
    return Outcome::other_memory;
  } catch (...) {
    return Outcome::refused;
  }
}

/// Requests that differ only in addresses and sizes, and are copied as one.
struct Group {
  Request any;
  std::vector<CopyItem> parts;
  std::uint64_t bytes = 0;

  void add(Request const& request) {
    any = request;
    for (std::uint64_t i = 0; i < request.height; ++i) {
      parts.push_back({request.dst + i * request.dst_pitch, request.src + i * request.src_pitch, request.width});
    }
    bytes += request.size();
  }
};

std::unique_ptr<Staged> submit(Context& context, Stream& stream, Group const& group) {
  StagingLimits limits;
  limits.staging_bytes = ring_bytes_of_context;
  if (!settings.huge_pages) limits.huge_from = 0;
  bool const to_device = group.any.toward == Request::Toward::device;
  auto const toward = to_device ? Staging::Toward::device : Staging::Toward::host;
  std::lock_guard const guard(stream.mutex);
  // Earlier work of the stream may write the source, so it is read in turn unless the caller allows otherwise.
  return context.staging().copy(*stream.queue, toward, group.parts, to_device && group.any.early, limits);
}

Outcome stage_group(Driver const& driver, Group const& group) {
  Request const& request = group.any;
  auto* const stream = reinterpret_cast<void*>(request.stream);
  void* context_handle = nullptr;
  unsigned long long context_number = 0, stream_number = 0;
  int const code = request.stream <= per_thread_stream ? driver.cuCtxGetCurrent(&context_handle)
                                                       : driver.cuStreamGetCtx(stream, &context_handle);
  if (code != success || context_handle == nullptr || driver.cuCtxGetId(context_handle, &context_number) != success ||
      driver.cuStreamGetId(stream, &stream_number) != success) {
    return Outcome::refused;
  }
  // Waiting for the stream is forbidden while another one is under capture; the driver's own copy returns that error.
  if (request.synchronous) {
    int const waits = driver.cuStreamQuery(stream);
    if (waits != success && waits != not_ready) return Outcome::refused;
  }
  Context& context = TheContexts::get([] { return std::make_unique<Contexts>(); }).get(context_handle, context_number);
  if (context.failures >= most_failures) return Outcome::refused;
  if (context.asked_for.fetch_add(group.bytes) + group.bytes < thresholds_before_rings * settings.min_bytes) {
    return Outcome::few;
  }
  try {
    auto const into = context.stream(request.stream, stream_number);
    auto const staged = submit(context, *into, group);
    if (staged == nullptr) return Outcome::no_room;
    if (!wait_until_over(*staged, driver, request)) return Outcome::refused;
    context.failures = 0;
    return Outcome::staged;
  } catch (...) {
    ++context.failures;
    return Outcome::refused;
  }
}

/// Set the outcome of each request whose outcome is `staged`.
template <class OutcomeOf>
void for_each_staged(std::span<Request> requests, Outcome* outcomes, OutcomeOf&& outcome_of) {
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (outcomes[i] == Outcome::staged) outcomes[i] = outcome_of(requests[i]);
  }
}

}  // namespace

void decide(std::span<Request> requests, Outcome* outcomes) noexcept {
  tool::Uncancelled const uncancelled;
  Driver const* const driver = Driver::get();
  auto const each = [&](auto&& outcome_of) { for_each_staged(requests, outcomes, outcome_of); };
  // Before any question to the driver, whose locks other threads may have held at the fork.
  Contexts const* const made = TheContexts::if_made();
  if (made != nullptr && is_parents(made->made_in)) return each([](Request const&) { return Outcome::child; });
  if (tool::this_process.sandboxed) return each([](Request const&) { return Outcome::sandboxed; });
  if (driver == nullptr) return each([](Request const&) { return Outcome::old_driver; });
  if (is_captured(*driver, requests[0].stream)) return each([](Request const&) { return Outcome::captured; });
  each(could_be);
}

void stage(std::span<Request> requests, Outcome* outcomes) noexcept {
  tool::Uncancelled const uncancelled;
  auto const each = [&](auto&& outcome_of) { for_each_staged(requests, outcomes, outcome_of); };
  for (int kind = 0; kind < 4; ++kind) {
    auto const toward = (kind & 1) != 0 ? Request::Toward::device : Request::Toward::host;
    bool const early = (kind & 2) != 0;
    auto const is_of_it = [&](Request const& request) { return request.toward == toward && request.early == early; };
    auto outcome = Outcome::refused;  // also if memory runs out or a query of the driver fails
    try {
      Group group;
      each([&](Request const& request) {
        if (is_of_it(request)) group.add(request);
        return Outcome::staged;
      });
      if (group.parts.empty()) continue;
      outcome = stage_group(*Driver::get(), group);
    } catch (...) {
    }
    each([&](Request const& request) { return is_of_it(request) ? outcome : Outcome::staged; });
  }
}

bool split(Request request) noexcept {
  tool::Uncancelled const uncancelled;
  Driver const* const driver = Driver::get();
  if (driver == nullptr || request.height > 1 || request.wraps()) return false;
  if (is_captured(*driver, request.stream)) return false;
  auto* const stream = reinterpret_cast<void*>(request.stream);
  try {
    Memory memory;
    auto const has_ours = [&](Address ptr) { return memory.map.has_any(ptr, request.width); };
    if (!has_ours(request.dst) && !has_ours(request.src)) return false;
    // All is planned before anything is copied: a copy that the driver refuses for another reason writes nothing.
    auto const planned = plan(memory, request);
    if (!planned) return false;
    if (planned->reason == Reason::in_host) {
      if (driver->cuStreamSynchronize(stream) != success) return false;
      std::memmove(reinterpret_cast<void*>(request.dst), reinterpret_cast<void const*>(request.src), request.width);
      return true;
    }
    if (planned->steps.size() == 1) return false;
    int code = success;
    for (CopyStep const& step : planned->steps) {
      Request part = request;
      part.dst = step.dst, part.src = step.src, part.width = step.size;
      auto outcome = part.width < settings.min_bytes ? Outcome::small : Outcome::staged;
      decide({&part, 1}, &outcome);
      stage({&part, 1}, &outcome);
      if (outcome != Outcome::staged) code = driver->cuMemcpyAsync(part.dst, part.src, part.width, stream);
      if (code != success) break;
    }
    int const ended = driver->cuStreamSynchronize(stream);
    return code == success && ended == success;
  } catch (...) {
    return false;
  }
}

}  // namespace pinning::tool::cuda
