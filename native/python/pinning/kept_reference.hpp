// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

#include <cstdint>

namespace pinning {

/// An object that a lane keeps alive until the operation at a position is over.
struct KeptReference {
  std::uint64_t position;
  PyObject* thing;  // a Work, or a tuple of objects
};

}  // namespace pinning
