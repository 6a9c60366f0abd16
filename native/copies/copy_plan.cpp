// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <pinning/copy_plan.hpp>
#include <string>

#include "../base/processors.hpp"

namespace pinning {

namespace {

constexpr Address end_of_memory = ~Address{0};
constexpr std::uint64_t most_turns = 64;  // per copy: each costs the driver 5 us and an entry in the stream

/// Whether all of a range is memory of devices, or none of it is.
bool is_device(MemoryRanges& ranges, char const* name, Span span) {
  auto const is_device_at = [&](Address at) { return ranges.of(at, span.end).kind == MemoryRange::Kind::device; };
  if (!is_device_at(span.start)) return false;
  for (Address at = span.start; at < span.end; at = ranges.of(at, span.end).end) {
    if (is_device_at(at)) continue;
    throw InvalidRange(std::string(name) + " " + describe(span.start, span.end - span.start) +
                       " runs past the end of an allocation of the device, at " + describe(at));
  }
  return true;
}

CopyPath path_of(MemoryRange const& range, std::uint64_t size, CopyRequest const& request, bool stages,
                 CopyLimits const& limits) {
  if (range.kind == MemoryRange::Kind::locked) return CopyPath::direct;
  bool const in_turn = request.to_device() && request.in_turn;
  return stages && (in_turn || limits.stages(size, request.to_device())) ? CopyPath::staged : CopyPath::plain;
}

Reason reason_of(CopyPlan const& plan, CopyRequest const& request, bool stages, CopyLimits const& limits) {
  if (plan.path == CopyPath::direct) return Reason::locked;
  if (plan.path == CopyPath::staged) return Reason::large;
  std::uint64_t largest = 0;
  for (CopyStep const& step : plan.steps) {
    if (step.path == CopyPath::plain) largest = std::max(largest, step.size);
  }
  if (largest < limits.stage_from(request.to_device())) return Reason::small;
  return stages ? Reason::one_thread : Reason::no_values;
}

CopyPlan plan_host_end(MemoryRanges& ranges, CopyRequest const& request, bool stages, CopyLimits const& limits) {
  CopyPlan plan{CopyPath::direct, Reason::locked, {}};
  Address const host = request.host();
  std::uint64_t const ask_from = std::min(request.ask_from, limits.stage_from(request.to_device()));
  for (std::uint64_t offset = 0; offset < request.size;) {
    MemoryRange const range = ranges.of_host(host + offset, host + request.size, ask_from);
    std::uint64_t const size = std::min(request.size - offset, range.bytes_from(host + offset));
    CopyPath const path = path_of(range, size, request, stages, limits);
    plan.steps.push_back({request.dst + offset, request.src + offset, size, path});
    plan.path = std::max(plan.path, path);  // `CopyPath` is ordered, the slowest last
    offset += size;
  }
  plan.reason = reason_of(plan, request, stages, limits);
  return plan;
}

}  // namespace

// Measured on an H200, GB/s of 4 MiB in and out: with 16 processors 12 and 11 by the driver, 27 and 27 staged; with three
// 13 and 12, and 20 and 14 or more. With two processors the driver is faster up to 32 MiB, where staging a copy only lets
// the program continue meanwhile.
CopyLimits::CopyLimits() noexcept
    : stage_to_device(std::uint64_t{usable_processors_once() > 2 ? 4u : 8u} << 20), stage_to_host(stage_to_device) {}

Direction direction_of(MemoryRanges& ranges, Span dst, Span src) {
  bool const dst_device = is_device(ranges, "dst", dst), src_device = is_device(ranges, "src", src);
  return dst_device && src_device ? Direction::on_device
         : dst_device             ? Direction::to_device
         : src_device             ? Direction::to_host
                                  : Direction::in_host;
}

CopyRequest request_of(PinnedMap& map, VendorDevice& device, Address dst, Address src, std::uint64_t size) {
  for (auto const& [name, ptr] : {std::pair("dst", dst), std::pair("src", src)}) {
    if (ptr != 0 && size != 0 && ptr <= end_of_memory - size) continue;
    throw InvalidRange(std::string(name) + " " + describe(ptr, size) + " is not a range of memory");
  }
  MemoryRanges ranges(map, device);
  return {dst, src, size, direction_of(ranges, {dst, dst + size}, {src, src + size})};
}

CopyPlan plan_copy(MemoryRanges& ranges, CopyRequest const& request, bool stages, CopyLimits const& limits) {
  auto const whole = [&](CopyPath path, Reason reason) {
    return CopyPlan{path, reason, {{request.dst, request.src, request.size, path}}};
  };
  switch (request.direction) {
    case Direction::on_device: return whole(CopyPath::direct, Reason::on_device);
    case Direction::between_devices: return whole(CopyPath::direct, Reason::connected);
    case Direction::through_host: return whole(CopyPath::staged, Reason::not_connected);
    case Direction::in_host: return whole(CopyPath::plain, Reason::in_host);
    case Direction::to_device:
    case Direction::to_host: break;
  }
  return plan_host_end(ranges, request, stages, limits);
}

PlannedCopy::PlannedCopy(PinnedMap& map, VendorDevice& device, CopyRequest const& request, bool stages,
                         CopyLimits const& limits)
    : staging_(staging(device)),
      request_(request),
      limits_(limits),
      ranges_(map, device),
      plan_(plan_copy(ranges_, request, stages, limits)) {}

PlannedCopy::~PlannedCopy() = default;

void PlannedCopy::submit_all(VendorQueue& queue) {
  staged_.reserve(plan_.steps.size());
  std::array<std::uint64_t, 3> moved{};  // by path; counted once all is submitted
  for (CopyStep const& step : plan_.steps) {
    CopyPath path = step.path;
    if (auto copy = staged(queue, step)) {
      staged_.push_back(std::move(copy));
    } else {
      if (path == CopyPath::staged) path = CopyPath::plain, no_room_ = true;
      if (path != CopyPath::direct && request_.to_device() && request_.in_turn) queue.synchronize();
      path == CopyPath::direct ? copy_in_turns(queue, step) : queue.copy(step.dst, step.src, step.size);
    }
    any_submitted_ = true;
    moved[static_cast<std::size_t>(path)] += step.size;
  }
  for (std::size_t path = 0; path < moved.size(); ++path) {
    if (moved[path] != 0) count_moved(static_cast<CopyPath>(path), moved[path]);
  }
}

/// Stage one step, or return null if the vendor copies it. Copies within the host are always staged: the vendor's own
/// copy would block until the queue's earlier work is complete.
std::unique_ptr<Staged> PlannedCopy::staged(VendorQueue& queue, CopyStep const& step) {
  bool const in_host = request_.direction == Direction::in_host;
  if (step.path != CopyPath::staged && !in_host) return nullptr;
  using Toward = Staging::Toward;
  Toward const toward = in_host ? Toward::in_host : request_.to_device() ? Toward::device : Toward::host;
  return staging_.copy(queue, toward, {{step.dst, step.src, step.size}}, request_.early, limits_);
}

/// Copy in pieces, each followed by a wait that is already satisfied, so that small copies of other queues need not
/// wait for all of a large one. If the wait is refused, the copy continues without it.
void PlannedCopy::copy_in_turns(VendorQueue& queue, CopyStep const& step) {
  std::uint64_t const turn = std::max(queue.turn_bytes(), (step.size / most_turns + 4095) & ~std::uint64_t{4095});
  if (!request_.has_host_end() || step.size < turn || queue.capture() != 0) return queue.copy(step.dst, step.src, step.size);
  for (std::uint64_t at = 0; at < step.size; at += turn) {
    queue.copy(step.dst + at, step.src + at, std::min(turn, step.size - at));
    any_submitted_ = true;
    try {
      if (!zero_) zero_ = staging_.zero();
      queue.wait_value(reinterpret_cast<Address>(zero_->begin()), 0);
    } catch (std::exception const&) {
    }
  }
}

}  // namespace pinning
