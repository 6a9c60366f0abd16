// SPDX-License-Identifier: Apache-2.0
// How exceptions cross between C++ and Python, in both directions.
#pragma once

#include <Python.h>

#include <exception>
#include <memory>
#include <new>
#include <pagetable/reservation.hpp>
#include <pinning/errors.hpp>

#include "gil.hpp"

namespace pinning {

/// The pending Python exception, fetched to pass through C++ and be raised again unchanged.
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
    PyErr_NormalizeException(&parts_->type, &parts_->value, &parts_->traceback);
  }
  /// Collectors do not see what C++ keeps: frames would keep the queue, which keeps the error.
  void forget_frames() noexcept {
    Gil const gil;
    Py_CLEAR(parts_->traceback);
    if (parts_->value != nullptr) PyException_SetTraceback(parts_->value, Py_None);
  }
  PyObject* type() const noexcept { return parts_->type; }
  void raise_again() const {
    PyErr_Restore(Py_XNewRef(parts_->type), Py_XNewRef(parts_->value), Py_XNewRef(parts_->traceback));
  }

 private:
  struct Parts {
    PyObject *type, *value, *traceback;
  };
  std::shared_ptr<Parts> parts_;
};

struct PythonError : ForeignError {
  void forget_way() noexcept override { raised.forget_frames(); }
  Raised raised;
};
/// Ctrl-C and the like, or what a handler of a signal raises: not a std::exception, so that nothing takes it for the error of
/// a vendor, or tolerates it.
struct PythonInterrupt {
  Raised raised;
};
struct PythonAlreadyPinned : AlreadyPinned {
  PythonAlreadyPinned() : AlreadyPinned("a Python exception") {}
  Raised raised;
};
/// A MemoryError, such as LockLimitError: idle regions may give way, and the lock is tried again.
struct PythonNoRoom : LockLimit {
  PythonNoRoom() : LockLimit("a Python exception") {}
  Raised raised;
};

/// Throw the pending Python exception. The GIL is held.
[[noreturn]] inline void throw_raised() {
  if (!PyErr_ExceptionMatches(PyExc_Exception)) throw PythonInterrupt();
  throw PythonError();
}

/// Handle signals, such as Ctrl-C, in a thread that waits without the GIL.
inline void handle_signals() {
  Gil const gil;
  if (PyErr_CheckSignals() < 0) throw PythonInterrupt();
}

/// Raise in Python what C++ has just thrown. The GIL is held.
inline void raise_in_python() {
  auto const type_of = [](char const* name) {
    PyObject* const module = PyImport_ImportModule("pinning.errors");
    PyObject* const type = module == nullptr ? nullptr : PyObject_GetAttrString(module, name);
    Py_XDECREF(module);
    return type;
  };
  auto const raise = [&](char const* name, char const* what) {
    PyObject* const type = type_of(name);
    PyObject* const text = type == nullptr ? nullptr : PyUnicode_DecodeFSDefault(what);  // it may name a file
    if (text != nullptr) PyErr_SetObject(type, text);
    Py_XDECREF(text);
    Py_XDECREF(type);
  };
  auto const raise_vendor = [&](char const* name, VendorCall const& call) {
    PyObject* const type = type_of(name);
    PyObject* const advice = type == nullptr ? nullptr : PyUnicode_DecodeFSDefault(call.advice.c_str());
    PyObject* const error = advice == nullptr ? nullptr : PyObject_CallFunction(type, "sLsO", call.function.c_str(),
                                                                                call.code, call.name.c_str(), advice);
    if (error != nullptr) PyErr_SetObject(type, error);
    Py_XDECREF(error);
    Py_XDECREF(advice);
    Py_XDECREF(type);
  };
  try {
    throw;
  } catch (PythonError const& error) {
    error.raised.raise_again();
  } catch (PythonInterrupt const& error) {
    error.raised.raise_again();
  } catch (PythonAlreadyPinned const& error) {
    error.raised.raise_again();
  } catch (PythonNoRoom const& error) {
    error.raised.raise_again();
  } catch (PartialOverlap const& error) {
    PyObject* const type = type_of("PartialOverlapError");
    auto const size = [](Span range) { return range.end - range.start; };
    PyObject* const refusal =
        type == nullptr ? nullptr : PyObject_CallFunction(type, "s(KK)(KK)(KK)", error.what(), error.wanted.start,
                                                          size(error.wanted), error.region.start, size(error.region),
                                                          error.all.start, size(error.all));
    if (refusal != nullptr) PyErr_SetObject(type, refusal);
    Py_XDECREF(refusal);
    Py_XDECREF(type);
  } catch (Closed const& error) {
    raise("PinningError", error.what());
  } catch (std::invalid_argument const& error) {  // also that of the page table
    raise("InvalidRangeError", error.what());
  } catch (NotLocked const& error) {
    raise("NotLockedError", error.what());
  } catch (StillLocked const& error) {
    raise("StillLockedError", error.what());
  } catch (VendorAlreadyPinned const& error) {
    raise_vendor("AlreadyPinnedError", error.call);
  } catch (VendorError const& error) {
    raise_vendor(error.call.no_memory ? "OutOfMemoryError" : "VendorError", error.call);
  } catch (GraphCapture const& error) {
    raise("GraphCaptureError", error.what());
  } catch (LockLimit const& error) {
    raise("LockLimitError", error.what());
  } catch (Unavailable const& error) {
    raise("PluginUnavailableError", error.what());
  } catch (pagetable::NoAddresses const& error) {
    PyErr_SetString(PyExc_MemoryError, error.what());
  } catch (std::bad_alloc const&) {
    PyErr_NoMemory();
  } catch (std::exception const& error) {
    raise("PinningError", error.what());
  } catch (...) {
    raise("PinningError", "an exception of unknown kind");
  }
}

}  // namespace pinning
