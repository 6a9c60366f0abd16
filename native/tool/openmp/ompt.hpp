// SPDX-License-Identifier: Apache-2.0
// The part of OMPT that the tool uses, as in OpenMP 5.2 and LLVM 19. The vendors' <omp-tools.h> is not needed to build.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

typedef void (*ompt_interface_fn_t)(void);
typedef ompt_interface_fn_t (*ompt_function_lookup_t)(char const* name);
typedef void (*ompt_callback_t)(void);
typedef void ompt_device_t;
typedef std::uint64_t ompt_id_t;

typedef union ompt_data_t {
  std::uint64_t value;
  void* ptr;
} ompt_data_t;

typedef struct ompt_start_tool_result_t {
  int (*initialize)(ompt_function_lookup_t lookup, int initial_device_num, ompt_data_t* tool_data);
  void (*finalize)(ompt_data_t* tool_data);
  ompt_data_t tool_data;
} ompt_start_tool_result_t;

typedef enum ompt_callbacks_t {
  ompt_callback_target_data_op = 9,
  ompt_callback_device_initialize = 12,
  ompt_callback_target_emi = 33,
  ompt_callback_target_data_op_emi = 34,
} ompt_callbacks_t;

typedef enum ompt_set_result_t {
  ompt_set_error = 0,
  ompt_set_never = 1,
  ompt_set_impossible = 2,
  ompt_set_sometimes = 3,
  ompt_set_sometimes_paired = 4,
  ompt_set_always = 5,
} ompt_set_result_t;

typedef enum ompt_scope_endpoint_t {
  ompt_scope_begin = 1,
  ompt_scope_end = 2,
  ompt_scope_beginend = 3,
} ompt_scope_endpoint_t;

typedef enum ompt_target_data_op_t {
  ompt_target_data_alloc = 1,
  ompt_target_data_transfer_to_device = 2,
  ompt_target_data_transfer_from_device = 3,
  ompt_target_data_delete = 4,
  ompt_target_data_associate = 5,
  ompt_target_data_disassociate = 6,
  ompt_target_data_alloc_async = 17,
  ompt_target_data_transfer_to_device_async = 18,
  ompt_target_data_transfer_from_device_async = 19,
  ompt_target_data_delete_async = 20,
} ompt_target_data_op_t;

typedef enum ompt_target_t {
  ompt_target = 1,
  ompt_target_enter_data = 2,
  ompt_target_exit_data = 3,
  ompt_target_update = 4,
  ompt_target_nowait = 9,
  ompt_target_enter_data_nowait = 10,
  ompt_target_exit_data_nowait = 11,
  ompt_target_update_nowait = 12,
} ompt_target_t;

typedef ompt_set_result_t (*ompt_set_callback_t)(ompt_callbacks_t event, ompt_callback_t callback);

typedef void (*ompt_callback_device_initialize_t)(int device_num, char const* type, ompt_device_t* device,
                                                  ompt_function_lookup_t lookup, char const* documentation);

typedef void (*ompt_callback_target_emi_t)(ompt_target_t kind, ompt_scope_endpoint_t endpoint, int device_num,
                                           ompt_data_t* task_data, ompt_data_t* target_task_data,
                                           ompt_data_t* target_data, void const* codeptr_ra);

typedef void (*ompt_callback_target_data_op_emi_t)(ompt_scope_endpoint_t endpoint, ompt_data_t* target_task_data,
                                                   ompt_data_t* target_data, ompt_id_t* host_op_id,
                                                   ompt_target_data_op_t optype, void* src_addr, int src_device_num,
                                                   void* dest_addr, int dest_device_num, std::size_t bytes,
                                                   void const* codeptr_ra);

typedef void (*ompt_callback_target_data_op_t)(ompt_id_t target_id, ompt_id_t host_op_id, ompt_target_data_op_t optype,
                                               void* src_addr, int src_device_num, void* dest_addr,
                                               int dest_device_num, std::size_t bytes, void const* codeptr_ra);
}
