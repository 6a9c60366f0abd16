// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "python_device.hpp"

namespace pinning {

/// A Python object with `_add(ptr, size)`, which returns the argument for `_remove`.
class PythonRegistrar : public Registrar {
 public:
  /// `registrar` is borrowed, as the device of a `PythonDevice` is; it calls `let_go` before it ends. The GIL is held.
  PythonRegistrar(PyObject* registrar, std::uint64_t piece) noexcept : registrar_(registrar), piece_(piece) {}

  void let_go() noexcept { registrar_ = nullptr; }

  std::uint64_t piece() const noexcept override { return piece_; }

  void* add(Address ptr, std::uint64_t size) override {
    PythonCall const during;
    if (registrar_ == nullptr) return Py_NewRef(Py_None);
    PyObject* const handle = PyObject_CallMethod(registrar_, "_add", "KK", static_cast<unsigned long long>(ptr),
                                                 static_cast<unsigned long long>(size));
    if (handle == nullptr) throw_raised();
    return handle;
  }

  void remove(void* handle) override {
    PythonCall const during;
    auto* const known = static_cast<PyObject*>(handle);
    if (registrar_ != nullptr) {
      call_for_good([&] { return PyObject_CallMethod(registrar_, "_remove", "(O)", known); }, [] { return false; });
    }
    Py_DECREF(known);
  }

 private:
  PyObject* registrar_;  // null after `let_go`
  std::uint64_t const piece_;
};

/// Add a registrar to the map, which will destroy it. The GIL is not held.
inline PythonRegistrar* add_registrar(PinnedMap& map, PyObject* registrar, std::uint64_t piece) {
  auto made = std::make_unique<PythonRegistrar>(registrar, piece);
  PythonRegistrar* const added = made.get();
  map.add_registrar(std::move(made));
  return added;
}

}  // namespace pinning
