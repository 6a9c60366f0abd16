// SPDX-License-Identifier: Apache-2.0
// How the C++ map talks to a device written in Python, and how its exceptions cross in both directions.
#pragma once

#include <Python.h>
#include <unistd.h>

#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <pinning/mapped_locks.hpp>

namespace pinning {

/// The GIL, held or not before.
///
/// A daemon thread that asks for it while the interpreter exits never gets it: before Python 3.14 its stack is unwound
/// instead, which C++ on it does not survive. Such a thread stops here, as 3.14 has it, until the process ends.
class Gil {
 public:
  Gil() try : state_(PyGILState_Ensure()) {
  } catch (...) {
    stop();
  }
  ~Gil() {
    if (!PyGILState_Check()) stop();
    PyGILState_Release(state_);
  }
  Gil(Gil const&) = delete;

 private:
  [[noreturn]] static void stop() noexcept {
    for (;;) pause();
  }

  PyGILState_STATE state_;
};

/// How many calls of Python devices this thread is in the middle of.
inline thread_local int device_calls = 0;

/// A call of a Python device: the GIL, and one more in `device_calls`.
class DeviceCall {
 public:
  DeviceCall() { ++device_calls; }
  ~DeviceCall() { --device_calls; }
  DeviceCall(DeviceCall const&) = delete;

 private:
  Gil gil_;
};

/// The Python exception that is being raised, taken away to travel through C++ and be raised again unchanged.
class Raised {
 public:
  Raised() : parts_(new Parts{}, [](Parts* parts) {
    Gil const gil;
    Py_XDECREF(parts->type);
    Py_XDECREF(parts->value);
    Py_XDECREF(parts->traceback);
    delete parts;
  }) {
    PyErr_Fetch(&parts_->type, &parts_->value, &parts_->traceback);
  }
  void raise_again() const {
    PyErr_Restore(Py_XNewRef(parts_->type), Py_XNewRef(parts_->value), Py_XNewRef(parts_->traceback));
  }

 private:
  struct Parts {
    PyObject *type, *value, *traceback;
  };
  std::shared_ptr<Parts> parts_;
};

struct PythonError : std::exception {
  Raised raised;
};
/// Ctrl-C and the like: no std::exception, because it is not for `MappedLocks` to tolerate.
struct PythonInterrupt {
  Raised raised;
};
struct PythonAlreadyPinned : AlreadyPinned {
  PythonAlreadyPinned() : AlreadyPinned("a Python exception") {}
  Raised raised;
};

/// A device object with `data_lock`, `data_unlock`, `is_pinned_ptr`, and perhaps `coherence`.
class PythonLocker : public Locker {
 public:
  /// `device` is borrowed and must outlive this: a reference that the garbage collector cannot see would keep a device
  /// in a cycle with its map forever. The GIL is held.
  PythonLocker(PyObject* device, PyObject* already_pinned_error, bool fine, bool coarse)
      : device_(device), already_pinned_error_(Py_NewRef(already_pinned_error)), grains_{fine, coarse} {}
  ~PythonLocker() override {
    Gil const gil;
    Py_DECREF(already_pinned_error_);
  }

  Address lock(Address ptr, std::uint64_t size, Wish wish) override {
    DeviceCall const during;
    PyObject* const read_only = wish.access == Access::unknown     ? Py_None
                                : wish.access == Access::read_only ? Py_True
                                                                   : Py_False;
    if (wish.grain != Grain::coarse) {
      return address_of(PyObject_CallMethod(device_, "data_lock", "KKO", static_cast<unsigned long long>(ptr),
                                            static_cast<unsigned long long>(size), read_only));
    }
    // Only a device that has coarse grains knows of a fourth argument. (No destructor may give these objects back: it
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
    DeviceCall const during;
    PyObject* answer = call("data_unlock", ptr);
    if (answer == nullptr && PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) {
      // Ctrl-C struck in Python code around the vendor's call: before or after it, nobody knows. A second try settles
      // it, for where it fails the first one worked. Then Ctrl-C is raised again, for the caller.
      PyErr_Clear();
      answer = call("data_unlock", ptr);
      if (answer == nullptr) {
        PyErr_Clear();
        answer = Py_NewRef(Py_None);
      }
      PyErr_SetInterrupt();
    }
    if (answer == nullptr) throw_raised();
    Py_DECREF(answer);
  }

  std::optional<Pinned> is_pinned(Address ptr) override {
    DeviceCall const during;
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

  Grains grains() const noexcept override { return grains_; }

 private:
  [[noreturn]] static void throw_raised() {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) throw PythonInterrupt();
    throw PythonError();
  }
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
  Grains const grains_;
};

/// Raises in Python what C++ has just thrown. The GIL is held.
inline void raise_in_python() {
  auto const raise = [](char const* name, char const* what) {
    PyObject* const module = PyImport_ImportModule("pinning.errors");
    PyObject* const type = module == nullptr ? nullptr : PyObject_GetAttrString(module, name);
    if (type != nullptr) PyErr_SetString(type, what);
    Py_XDECREF(type);
    Py_XDECREF(module);
  };
  try {
    throw;
  } catch (PythonError const& error) {
    error.raised.raise_again();
  } catch (PythonInterrupt const& error) {
    error.raised.raise_again();
  } catch (PythonAlreadyPinned const& error) {
    error.raised.raise_again();
  } catch (PartialOverlap const& error) {
    raise("PartialOverlapError", error.what());
  } catch (InvalidRange const& error) {
    raise("InvalidRangeError", error.what());
  } catch (NotLocked const& error) {
    raise("NotLockedError", error.what());
  } catch (StillLocked const& error) {
    raise("StillLockedError", error.what());
  } catch (std::bad_alloc const&) {
    PyErr_NoMemory();
  } catch (std::exception const& error) {
    raise("PinningError", error.what());
  }
}

/// Destroys a map, and with it the locks it still holds, without touching an exception that is on its way.
inline void destroy(MappedLocks* mapped, PinnedMap* map, PythonLocker* locker) noexcept {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  delete mapped;
  delete map;
  delete locker;
  PyErr_Restore(type, value, traceback);
}

}  // namespace pinning
