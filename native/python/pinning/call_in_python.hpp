// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

#include <sys/syscall.h>

#include <pinning/gil.hpp>
#include <pinning/process.hpp>

namespace pinning {

/// Runs on a thread of the vendor, which may never have run Python before.
inline void call_in_python(void* callback) {
  unsigned const begun_in = generation();
  {
    Gil const gil;
    PyObject* const result = PyObject_CallNoArgs(static_cast<PyObject*>(callback));
    if (result == nullptr) PyErr_WriteUnraisable(static_cast<PyObject*>(callback));
    Py_XDECREF(result);
  }
  // The function has forked and has returned in the child too. There the thread would go on with the queue of its
  // parent, for ever. It ends instead, without unwinding the vendor's functions, and so does a child that has no
  // other thread.
  if (is_parents(begun_in)) syscall(SYS_exit, 0);
}

}  // namespace pinning
