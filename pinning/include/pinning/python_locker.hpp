// SPDX-License-Identifier: Apache-2.0
// How the C++ map talks to a device written in Python, and how its exceptions cross in both directions.
#pragma once

#include <Python.h>
#include <unistd.h>

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <pinning/shared_map.hpp>
#include <string>

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

/// Who may call a device: threads that are not Python's can reach it too, and must be out before the interpreter ends.
class Door {
 public:
  enum class State { open, for_unlocking, shut };

  explicit Door(State state = State::open) : state_(state) {}

  /// Throws Unavailable where this is not to be called any more.
  void enter(bool locks, bool foreign) {
    std::lock_guard const guard(mutex_);
    if (state_ == State::shut || (state_ == State::for_unlocking && locks)) {
      throw Unavailable("Python has closed this map, as it does when its interpreter ends; nothing can be locked in it");
    }
    inside_ += foreign;
  }
  void leave(bool foreign) {
    std::lock_guard const guard(mutex_);
    inside_ -= foreign;
    settled_.notify_all();
  }
  /// Returns once no foreign thread is inside; they need the GIL, so it is not held here.
  void set(State state) {
    std::unique_lock guard(mutex_);
    state_ = state;
    if (state != State::open) settled_.wait(guard, [this] { return inside_ == 0; });
  }
  /// Where no other thread runs any more, one of which may have held the mutex.
  State state() const noexcept { return state_; }

 private:
  std::mutex mutex_;
  std::condition_variable settled_;
  State state_;
  int inside_ = 0;  // foreign threads
};

/// Whether this thread is in such a call from outside Python, which takes no Python objects with it: it may give them
/// back when there is no interpreter any more.
inline thread_local bool from_outside = false;

/// A call of a Python device: let in at its door, with the GIL, and one more in `device_calls`.
class DeviceCall {
 public:
  DeviceCall(Door& door, bool locks) : pass_(door, locks) { ++device_calls; }
  ~DeviceCall() { --device_calls; }
  DeviceCall(DeviceCall const&) = delete;

 private:
  struct Pass {
    Pass(Door& entered, bool locks) : door(entered) {
      door.enter(locks, foreign);
      from_outside = foreign;
    }
    ~Pass() {
      from_outside = before;
      door.leave(foreign);
    }
    Door& door;
    bool const foreign = PyGILState_GetThisThreadState() == nullptr;
    bool const before = from_outside;
  };
  Pass const pass_;
  Gil const gil_;
};

/// What an exception of Python's is to a caller in C.
inline pinning_status status_of(PyObject* exception) {
  static constexpr std::pair<char const*, pinning_status> kinds[] = {
      {"PartialOverlapError", PINNING_PARTIAL_OVERLAP}, {"InvalidRangeError", PINNING_INVALID_RANGE},
      {"NotLockedError", PINNING_NOT_LOCKED},           {"StillLockedError", PINNING_STILL_LOCKED},
      {"AlreadyPinnedError", PINNING_ALREADY_PINNED},   {"LockLimitError", PINNING_LOCK_LIMIT},
      {"VendorError", PINNING_VENDOR_ERROR},            {"PluginUnavailableError", PINNING_UNAVAILABLE}};
  pinning_status status = PINNING_UNKNOWN_ERROR;
  PyObject* const module = PyImport_ImportModule("pinning.errors");
  for (auto const& [name, meaning] : kinds) {
    PyObject* const type = module == nullptr ? nullptr : PyObject_GetAttrString(module, name);
    bool const matches = type != nullptr && PyErr_GivenExceptionMatches(exception, type) != 0;
    Py_XDECREF(type);
    if (matches) {
      status = meaning;
      break;
    }
  }
  Py_XDECREF(module);
  PyErr_Clear();
  if (status != PINNING_UNKNOWN_ERROR) return status;
  if (PyErr_GivenExceptionMatches(exception, PyExc_MemoryError) != 0) return PINNING_NO_MEMORY;
  return PyErr_GivenExceptionMatches(exception, PyExc_Exception) != 0 ? status : PINNING_INTERRUPTED;
}

/// "VendorError: cuMemHostRegister failed: ..."
inline std::string text_of(PyObject* exception) {
  std::string text = Py_TYPE(exception)->tp_name;
  PyObject* const said = PyObject_Str(exception);
  char const* const words = said == nullptr ? nullptr : PyUnicode_AsUTF8(said);
  if (words != nullptr) text = text + ": " + words;
  Py_XDECREF(said);
  PyErr_Clear();
  return text;
}

/// The Python exception that is being raised, taken away to travel through C++ and be raised again unchanged.
class Raised {
 public:
  Raised() : parts_(new Parts{}, [](Parts* parts) {
    if (parts->type != nullptr) {
      Gil const gil;
      parts->clear();
    }
    delete parts;
  }) {
    PyErr_Fetch(&parts_->type, &parts_->value, &parts_->traceback);
    PyErr_NormalizeException(&parts_->type, &parts_->value, &parts_->traceback);
    parts_->status = status_of(parts_->value);
    parts_->text = text_of(parts_->value);
    if (from_outside) parts_->clear();
  }
  void raise_again() const {
    if (parts_->type == nullptr) return PyErr_SetString(PyExc_RuntimeError, text());
    PyErr_Restore(Py_XNewRef(parts_->type), Py_XNewRef(parts_->value), Py_XNewRef(parts_->traceback));
  }
  pinning_status status() const noexcept { return parts_->status; }
  char const* text() const noexcept { return parts_->text.c_str(); }

 private:
  struct Parts {
    PyObject *type, *value, *traceback;
    pinning_status status;
    std::string text;

    void clear() {
      Py_CLEAR(type);
      Py_CLEAR(value);
      Py_CLEAR(traceback);
    }
  };
  std::shared_ptr<Parts> parts_;
};

struct PythonError : std::exception, StatusError {
  Raised raised;
  pinning_status leave() const noexcept override { return raised.status(); }
  char const* text() const noexcept override { return raised.text(); }
};
/// Ctrl-C and the like: no std::exception, because it is not for `MappedLocks` to tolerate.
struct PythonInterrupt : StatusError {
  Raised raised;
  pinning_status leave() const noexcept override {
    PyErr_SetInterrupt();  // C cannot raise it again, so Python's main thread does
    return PINNING_INTERRUPTED;
  }
  char const* text() const noexcept override { return raised.text(); }
};
struct PythonAlreadyPinned : AlreadyPinned, StatusError {
  PythonAlreadyPinned() : AlreadyPinned("a Python exception") {}
  Raised raised;
  pinning_status leave() const noexcept override { return PINNING_ALREADY_PINNED; }
  char const* text() const noexcept override { return raised.text(); }
};

/// A device object with `data_lock`, `data_unlock`, `is_pinned_ptr`, and perhaps `coherence`.
class PythonLocker : public Locker {
 public:
  /// `device` is borrowed and must outlive this: a reference that the garbage collector cannot see would keep a device
  /// in a cycle with its map forever. The GIL is held.
  PythonLocker(PyObject* device, PyObject* already_pinned_error, bool fine, bool coarse)
      : device_(device),
        already_pinned_error_(Py_NewRef(already_pinned_error)),
        grains_{fine, coarse},
        door_(new Door) {}
  ~PythonLocker() override {
    Gil const gil;
    Py_DECREF(already_pinned_error_);
    delete door_;
  }

  Address lock(Address ptr, std::uint64_t size, Wish wish) override {
    DeviceCall const during(*door_, true);
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
    DeviceCall const during(*door_, false);
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
    DeviceCall const during(*door_, false);
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

  void after_fork() override { door_ = new Door(door_->state()); }

  Door& door() noexcept { return *door_; }

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
  Door* door_;
};

/// The shared map of this name. `made` is its locker where Python has made it, now over `device` or before; else null,
/// for native code has.
inline pinning_map* share(char const* name, PyObject* device, PyObject* already_pinned_error, bool fine, bool coarse,
                          std::uint64_t largest, PythonLocker*& made) {
  std::unique_ptr<Locker> locker = std::make_unique<PythonLocker>(device, already_pinned_error, fine, coarse);
  pinning_map* const map = share(name, locker, largest);
  if (!locker) Py_INCREF(device);  // the map lives as long as the process
  made = dynamic_cast<PythonLocker*>(map->locker.get());
  return map;
}

/// Raises in Python what C++ has just thrown. The GIL is held.
inline void raise_in_python() {
  auto const raise = [](char const* name, char const* what) {
    PyObject* const module = PyImport_ImportModule("pinning.errors");
    PyObject* const type = module == nullptr ? nullptr : PyObject_GetAttrString(module, name);
    PyObject* const text = type == nullptr ? nullptr : PyUnicode_DecodeFSDefault(what);  // it may name a file
    if (text != nullptr) PyErr_SetObject(type, text);
    Py_XDECREF(text);
    Py_XDECREF(type);
    Py_XDECREF(module);
  };
  auto const raise_vendor = [](char const* name, VendorCall const& call) {
    PyObject* const module = PyImport_ImportModule("pinning.errors");
    PyObject* const type = module == nullptr ? nullptr : PyObject_GetAttrString(module, name);
    PyObject* const advice = type == nullptr ? nullptr : PyUnicode_DecodeFSDefault(call.advice.c_str());
    PyObject* const error = advice == nullptr ? nullptr : PyObject_CallFunction(type, "sLsO", call.function.c_str(),
                                                                                call.code, call.name.c_str(), advice);
    if (error != nullptr) PyErr_SetObject(type, error);
    Py_XDECREF(error);
    Py_XDECREF(advice);
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
  } catch (VendorAlreadyPinned const& error) {
    raise_vendor("AlreadyPinnedError", error.call);
  } catch (VendorError const& error) {
    raise_vendor("VendorError", error.call);
  } catch (LockLimit const& error) {
    raise("LockLimitError", error.what());
  } catch (Unavailable const& error) {
    raise("PluginUnavailableError", error.what());
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
