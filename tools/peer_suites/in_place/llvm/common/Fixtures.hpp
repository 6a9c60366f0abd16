// SPDX-License-Identifier: Apache-2.0
// The parts of liboffload's harness that its tests of registered memory need: one device, the host.
#pragma once

#include <gtest/gtest.h>

#include "OffloadAPI.h"

class OffloadDeviceTest : public testing::TestWithParam<char const*> {
 protected:
  void SetUp() override { ASSERT_EQ(PINNING_OK, pinning_map_open(&Device, GetParam())); }
  ol_device_handle_t Device = nullptr;
};

#define OFFLOAD_TESTS_INSTANTIATE_DEVICE_FIXTURE(fixture) INSTANTIATE_TEST_SUITE_P(, fixture, testing::Values("host:0"))
#define ASSERT_SUCCESS(call) ASSERT_EQ(OL_ERRC_SUCCESS, call)
#define ASSERT_ERROR(expected, call) ASSERT_EQ(expected, call)
