// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

#include <pinning/pool.hpp>

#include "python_errors.hpp"

namespace pinning {

/// A pool's source in Python, which belongs to the owner of the pool.
class PythonSource final : public Pool::Source {
 public:
  using Allocate = int (*)(PyObject* owner, std::size_t device, std::uint64_t size, Pool::Memory& made);  // -1: Python has
  using Free = int (*)(PyObject* owner, std::size_t device, Address base, bool& gone);                    // raised

  PythonSource(PyObject* owner, Allocate allocate, Free free) noexcept : owner_(owner), allocate_(allocate), free_(free) {}

  Pool::Memory allocate(std::size_t device, std::uint64_t size) override {
    Pool::Memory made{};
    Gil const gil;
    if (allocate_(owner_, device, size, made) < 0) throw_raised();
    return made;
  }
  void free(std::size_t device, Address base, bool& gone) override {
    Gil const gil;
    if (free_(owner_, device, base, gone) < 0) throw_raised();
  }

 private:
  PyObject* const owner_;
  Allocate const allocate_;
  Free const free_;
};

}  // namespace pinning
