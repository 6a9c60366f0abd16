// SPDX-License-Identifier: Apache-2.0
// How the C++ map talks to a device written in Python.
#pragma once

#include <pinning/mapped_locks.hpp>

#include "python_errors.hpp"

namespace pinning {

/// How many calls of Python devices this thread is in the middle of.
inline thread_local int device_calls = 0;

/// A call of somebody's Python code, with the GIL: one more in `device_calls`.
class PythonCall {
 public:
  PythonCall() { ++device_calls; }
  ~PythonCall() { --device_calls; }
  PythonCall(PythonCall const&) = delete;

 private:
  Gil const gil_;
};

/// For what gives something back: `call` makes a Python call, and returns its new reference.
///
/// Ctrl-C may strike in Python code around the vendor's call: before or after it, nobody knows. A second try settles it,
/// for where it fails the first one worked. Then Ctrl-C is raised again in this thread, for the caller. Throws what Python
/// raised otherwise.
template <class Call>
void call_for_good(Call&& call) {
  PyObject* answer = call();
  if (answer == nullptr && PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) {
    PyErr_Clear();
    answer = call();
    if (answer == nullptr) {
      PyErr_Clear();
      answer = Py_NewRef(Py_None);
    }
    PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), PyExc_KeyboardInterrupt);
  }
  if (answer == nullptr) throw_raised();
  Py_DECREF(answer);
}

/// A device object with `data_lock`, `data_unlock`, `is_pinned_ptr`, and perhaps `coherence`. Only threads of Python's
/// call it: a map over it is private to Python.
class PythonLocker : public Locker {
 public:
  /// `device` is borrowed and must outlive this: a reference that the garbage collector cannot see would keep a device
  /// in a cycle with its map forever. The GIL is held.
  PythonLocker(PyObject* device, PyObject* already_pinned_error, bool fine, bool coarse)
      : device_(device), already_pinned_error_(Py_NewRef(already_pinned_error)), coherence_{fine, coarse} {}
  ~PythonLocker() override {
    Gil const gil;
    Py_DECREF(already_pinned_error_);
  }

  Address lock(Address ptr, std::uint64_t size, LockOptions options) override {
    PythonCall const during;
    PyObject* const read_only = options.access == Access::unknown     ? Py_None
                                : options.access == Access::read_only ? Py_True
                                                                   : Py_False;
    if (options.coherence != Coherence::coarse) {
      return address_of(PyObject_CallMethod(device_, "data_lock", "KKO", static_cast<unsigned long long>(ptr),
                                            static_cast<unsigned long long>(size), read_only));
    }
    // Only a device that has both kinds knows of a fourth argument. (No destructor may give these objects back: it
    // would run without the GIL where the call never returns, see `Gil`.)
    PyObject* const method = PyObject_GetAttrString(device_, "data_lock");
    PyObject* const arguments = Py_BuildValue("(KKO)", static_cast<unsigned long long>(ptr),
                                              static_cast<unsigned long long>(size), read_only);
    PyObject* const named = Py_BuildValue("{sO}", "coherent", Py_False);
    bool const made = method != nullptr && arguments != nullptr && named != nullptr;
    PyObject* const answer = made ? PyObject_Call(method, arguments, named) : nullptr;
    Py_XDECREF(method);
    Py_XDECREF(arguments);
    Py_XDECREF(named);
    return address_of(answer);
  }

  void unlock(Address ptr) override {
    PythonCall const during;
    call_for_good([&] { return call("data_unlock", ptr); });
  }

  std::optional<Pinned> is_pinned(Address ptr) override {
    PythonCall const during;
    PyObject* const answer = call("is_pinned_ptr", ptr);
    if (answer == nullptr) throw_raised();
    if (answer == Py_None) {
      Py_DECREF(answer);
      return std::nullopt;
    }
    unsigned long long base = 0, size = 0, device_ptr = 0;
    PyObject* const three = PySequence_Tuple(answer);
    Py_DECREF(answer);
    bool const parsed = three != nullptr && PyArg_ParseTuple(three, "KKK", &base, &size, &device_ptr) != 0;
    Py_XDECREF(three);
    if (!parsed) throw_raised();
    return Pinned{base, size, device_ptr};
  }

  CoherenceSupport coherence() const noexcept override { return coherence_; }

 private:
  PyObject* call(char const* method, Address ptr) {
    return PyObject_CallMethod(device_, method, "K", static_cast<unsigned long long>(ptr));
  }
  Address address_of(PyObject* answer) {
    if (answer == nullptr && PyErr_ExceptionMatches(already_pinned_error_)) throw PythonAlreadyPinned();
    if (answer == nullptr) throw_raised();
    Address const address = PyLong_AsUnsignedLongLong(answer);
    Py_DECREF(answer);
    if (PyErr_Occurred() != nullptr) throw_raised();
    return address;
  }

  PyObject* device_;
  PyObject* already_pinned_error_;
  CoherenceSupport const coherence_;
};

/// Runs a destructor that may call Python, without touching an exception that is on its way.
template <class Body>
void keeping_exception(Body&& body) noexcept {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  body();
  PyErr_Restore(type, value, traceback);
}

/// Destroys a map, and with it the locks it still holds; one of a parent process's is abandoned.
inline void destroy(MappedLocks* mapped, PinnedMap* map, PythonLocker* locker) noexcept {
  if (map != nullptr && map->is_parents()) {
    map->abandon();
    return;
  }
  keeping_exception([&] {
    delete mapped;
    delete map;
    delete locker;
  });
}

}  // namespace pinning
