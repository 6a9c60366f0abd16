// SPDX-License-Identifier: Apache-2.0
// The OMPT tool: callbacks for a runtime's devices, mappings and transfers.
//
// LLVM 19 reports an allocation's host address before and after it, its device address only after it; a deletion has
// only the device address. Transfers are reported before and after they are submitted: those of locked memory continue
// until the runtime waits for them.
#include "ompt.hpp"

#include <utility>

#include "../inside.hpp"
#include "../output.hpp"
#include "../stacks.hpp"
#include "../uncancelled.hpp"
#include "tool.hpp"

namespace pinning::tool::openmp {

namespace {

struct Operation {
  ompt_target_data_op_t type;
  void* source;
  int source_device;
  void* target;
  int target_device;
  std::size_t bytes;

  bool is_transfer() const noexcept {
    return to_device() || type == ompt_target_data_transfer_from_device ||
           type == ompt_target_data_transfer_from_device_async;
  }
  bool to_device() const noexcept {
    return type == ompt_target_data_transfer_to_device || type == ompt_target_data_transfer_to_device_async;
  }
  /// The host range of a transfer.
  Range host() const noexcept { return range_of(to_device() ? source : target, bytes); }
};

/// Call `body` with the tool, if it runs. Errors are reported, and the program continues.
template <class Body>
void quietly(Body&& body) noexcept {
  Inside const inside;
  try {
    if (Tool* const tool = Tool::running()) body(*tool);
  } catch (std::exception const& error) {
    say(error.what());
  }
}

/// The transfer of this thread, which has one at a time. It is not cancelled in it: the end would not be reported.
struct Current {
  Moment began;
  std::optional<Range> lock;
  bool watched = false;
};
thread_local Current current;

void begin_transfer(Tool& tool, Operation const& op) {
  bool const to = op.to_device();
  int const number = to ? op.target_device : op.source_device;
  Device* const device = tool.devices.find(number);
  current.lock = std::nullopt;
  if (device != nullptr && op.bytes != 0 && !tool.devices.contains(to ? op.source_device : op.target_device)) {
    auto const device_ptr = reinterpret_cast<Address>(to ? op.target : op.source);
    Uncancelled const uncancelled;
    current.lock = tool.locks(*device).before_transfer(number, *device, op.host(), device_ptr);
    current.watched = true;
    Uncancelled::begin();
  }
  if (tool.context.journal.trace) current.began = now();
}

void end_transfer(Tool& tool, Operation const& op) {
  bool const to = op.to_device();
  Device* const device = tool.devices.find(to ? op.target_device : op.source_device);
  auto const& lock = current.lock;
  if (std::exchange(current.watched, false)) {
    tool.locks(*device).submitted();
    Uncancelled::end();
  }
  if (auto const& report = tool.context.journal.report) {
    report->moved(lock.value_or(op.host()), op.bytes, to, lock.has_value());
  }
  if (auto const& trace = tool.context.journal.trace) {
    trace->span(to ? "to device" : "from device", current.began, now(), op.host(),
                device ? device->name() : "unknown", lock ? "locked" : "not locked");
  }
}

void on(Tool& tool, ompt_scope_endpoint_t endpoint, Operation const& op) {
  bool const begins = endpoint != ompt_scope_end, ends = endpoint != ompt_scope_begin;
  switch (op.type) {
    case ompt_target_data_alloc:
    case ompt_target_data_alloc_async:
    case ompt_target_data_associate: {
      Device* const device = tool.devices.find(op.target_device);
      // omp_target_alloc has no host address; a failed allocation has no device address.
      if (ends && device != nullptr && op.source != nullptr && (op.target != nullptr || begins)) {
        auto const device_ptr = reinterpret_cast<Address>(op.target);
        tool.locks(*device).mapped(op.target_device, range_of(op.source, op.bytes), device_ptr);
      }
      break;
    }
    case ompt_target_data_delete:
    case ompt_target_data_delete_async:
      if (Device* const device = ends ? tool.devices.find(op.source_device) : nullptr) {
        tool.locks(*device).unmapped(op.source_device, reinterpret_cast<Address>(op.source));
      }
      break;
    case ompt_target_data_disassociate:
      if (Device* const device = ends ? tool.devices.find(op.target_device) : nullptr) {
        tool.locks(*device).unmapped_host(op.target_device, reinterpret_cast<Address>(op.source));
      }
      break;
    case ompt_target_data_transfer_to_device:
    case ompt_target_data_transfer_from_device:
    case ompt_target_data_transfer_to_device_async:
    case ompt_target_data_transfer_from_device_async:
      if (begins) begin_transfer(tool, op);
      if (ends) end_transfer(tool, op);
      break;
  }
}

void on_operation_emi(ompt_scope_endpoint_t endpoint, ompt_data_t*, ompt_data_t*, ompt_id_t*,
                      ompt_target_data_op_t type, void* source, int source_device, void* target, int target_device,
                      std::size_t bytes, void const*) {
  Operation const op{type, source, source_device, target, target_device, bytes};
  if (endpoint == ompt_scope_begin && !op.is_transfer()) return;
  quietly([&](Tool& tool) { on(tool, endpoint, op); });
}

void on_operation(ompt_id_t, ompt_id_t, ompt_target_data_op_t type, void* source, int source_device, void* target,
                  int target_device, std::size_t bytes, void const*) {
  quietly([&](Tool& tool) {
    on(tool, ompt_scope_beginend, {type, source, source_device, target, target_device, bytes});
  });
}

void on_device(int number, char const* type, ompt_device_t*, ompt_function_lookup_t, char const*) {
  quietly([&](Tool& tool) { tool.devices.add(number, type); });
}

/// For the trace only: a construct ends when its transfers and its kernel have ended.
void on_target(ompt_target_t kind, ompt_scope_endpoint_t endpoint, int number, ompt_data_t*, ompt_data_t*, ompt_data_t*,
               void const*) {
  thread_local Moment began[8];
  thread_local int depth = 0;
  if (endpoint == ompt_scope_begin) {
    if (depth < 8) began[depth] = now();
    depth++;
    return;
  }
  if (depth == 0 || --depth >= 8) return;
  quietly([&](Tool& tool) {
    char const* const names[8] = {"target", "target", "target enter data", "target exit data", "target update",
                                  "target", "target", "target"};
    Device* const device = tool.devices.find(number);
    tool.context.journal.trace->span(names[kind & 7], began[depth], now(), {},
                                     device ? device->name() : "unknown");
  });
}

int initialize(ompt_function_lookup_t lookup, int, ompt_data_t*) {
  auto const set = reinterpret_cast<ompt_set_callback_t>(lookup("ompt_set_callback"));
  if (set == nullptr) return 0;
  auto const watch = [&](ompt_callbacks_t event, auto* function) {
    return set(event, reinterpret_cast<ompt_callback_t>(function)) >= ompt_set_sometimes;
  };
  Uncancelled const uncancelled;
  learn_main_stack();
  Tool& tool = Tool::get();
  watch(ompt_callback_device_initialize, on_device);
  if (tool.context.journal.trace) watch(ompt_callback_target_emi, on_target);
  if (!watch(ompt_callback_target_data_op_emi, on_operation_emi) &&
      !watch(ompt_callback_target_data_op, on_operation)) {
    say("this OpenMP runtime does not tell of its transfers; nothing is locked");
  }
  return 1;
}

void finalize(ompt_data_t*) {
  Uncancelled const uncancelled;
  quietly([](Tool& tool) { tool.finish(); });
}

}  // namespace

}  // namespace pinning::tool::openmp

extern "C" [[gnu::visibility("default")]] ompt_start_tool_result_t* ompt_start_tool(unsigned, char const*) {
  static ompt_start_tool_result_t result = {pinning::tool::openmp::initialize, pinning::tool::openmp::finalize, {0}};
  return &result;
}
