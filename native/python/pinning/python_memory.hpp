// SPDX-License-Identifier: Apache-2.0
// Pinned memory of a device whose plugin is written in Python, for the staging engine.
#pragma once

#include <pinning/staging.hpp>

#include "python_errors.hpp"

namespace pinning {

class PythonMemory : public PinnedMemory {
 public:
  /// Both are kept: the device, and what its `allocate` and `free` take for memory of the host. The GIL is held.
  PythonMemory(PyObject* device, PyObject* kind) : device_(Py_NewRef(device)), kind_(Py_NewRef(kind)) {}
  ~PythonMemory() override {
    Gil const gil;
    Py_DECREF(device_);
    Py_DECREF(kind_);
  }

  Address allocate(std::uint64_t size) override {
    Gil const gil;
    PyObject* const answer = PyObject_CallMethod(device_, "allocate", "KO", static_cast<unsigned long long>(size), kind_);
    if (answer == nullptr) throw_raised();
    Address const ptr = PyLong_AsUnsignedLongLong(answer);
    Py_DECREF(answer);
    if (PyErr_Occurred() != nullptr) throw_raised();
    return ptr;
  }
  void free(Address ptr) override {
    Gil const gil;
    PyObject* const answer = PyObject_CallMethod(device_, "free", "KO", static_cast<unsigned long long>(ptr), kind_);
    if (answer == nullptr) throw_raised();
    Py_DECREF(answer);
  }

 private:
  PyObject* device_;
  PyObject* kind_;
};

}  // namespace pinning
