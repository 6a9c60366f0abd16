// SPDX-License-Identifier: Apache-2.0
//
// The parts of the conformance tests' harness that the tests of registered memory use.

#pragma once

#include <gtest/gtest.h>
#include <unified-runtime/ur_api.h>

#include <cstring>

#define ASSERT_SUCCESS(call) ASSERT_EQ(call, UR_RESULT_SUCCESS)
#define UUR_ASSERT_SUCCESS_OR_UNSUPPORTED(call) ASSERT_SUCCESS(call)
#define UUR_KNOWN_FAILURE_ON(...)
#define UUR_RETURN_ON_FATAL_FAILURE(call) do { call; if (HasFatalFailure()) return; } while (false)
#define UUR_INSTANTIATE_DEVICE_TEST_SUITE(fixture) INSTANTIATE_TEST_SUITE_P(device, fixture, ::testing::Values(0))

namespace uur {

struct urQueueTest : ::testing::TestWithParam<int> {
  ur_context_handle_t context = nullptr;
  ur_queue_handle_t queue = nullptr;

  void SetUp() override {
    ur_adapter_handle_t adapter;
    ur_platform_handle_t platform;
    ur_device_handle_t device;
    ASSERT_SUCCESS(urLoaderInit(0, nullptr));
    ASSERT_SUCCESS(urAdapterGet(1, &adapter, nullptr));
    ASSERT_SUCCESS(urPlatformGet(adapter, 1, &platform, nullptr));
    ASSERT_SUCCESS(urDeviceGetSelected(platform, UR_DEVICE_TYPE_ALL, 1, &device, nullptr));
    ASSERT_SUCCESS(urContextCreate(1, &device, nullptr, &context));
    ASSERT_SUCCESS(urQueueCreate(context, device, nullptr, &queue));
  }
  void TearDown() override {
    ASSERT_SUCCESS(urQueueRelease(queue));
    ASSERT_SUCCESS(urContextRelease(context));
  }
};

}  // namespace uur
