// SPDX-License-Identifier: Apache-2.0
// Devices, queues and events that are written in Python, as the C++ interface <pinning/vendor.hpp>.
#pragma once

#include <unistd.h>

#include <memory>
#include <pinning/mapped_locks.hpp>
#include <pinning/staging.hpp>
#include <utility>

#include "python_errors.hpp"

namespace pinning {

/// Number of calls of Python devices in progress on this thread.
inline thread_local int device_calls = 0;

/// A call of a device's Python code, with the GIL: one more in `device_calls`.
class PythonCall {
 public:
  PythonCall() { ++device_calls; }
  ~PythonCall() { --device_calls; }
  PythonCall(PythonCall const&) = delete;

 private:
  Gil const gil_;
};

/// Release the result of a Python call; null means that Python has raised, which is then thrown.
inline void drop(PyObject* answer) {
  if (answer == nullptr) throw_raised();
  Py_DECREF(answer);
}
inline bool truth(PyObject* answer) {
  if (answer == nullptr) throw_raised();
  int const truth = PyObject_IsTrue(answer);
  Py_DECREF(answer);
  if (truth < 0) throw_raised();
  return truth != 0;
}
inline Address address_of(PyObject* answer) {
  if (answer == nullptr) throw_raised();
  Address const address = PyLong_AsUnsignedLongLong(answer);
  Py_DECREF(answer);
  if (PyErr_Occurred() != nullptr) throw_raised();
  return address;
}

/// Have Python raise an exception in this thread soon.
inline void raise_soon(Raised const& raised) {
  auto const raise = [](void* pending) {
    std::unique_ptr<Raised> const owned(static_cast<Raised*>(pending));
    owned->raise_again();
    return -1;
  };
  // Pending calls are made by the main thread, as are the handlers of signals. In other threads a type can be raised.
  if (getpid() == gettid()) {
    auto owned = std::make_unique<Raised>(raised);
    if (Py_AddPendingCall(raise, owned.get()) == 0) return static_cast<void>(owned.release());
  }
  PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), raised.type());
}

/// Make a Python call that gives something back: `call` makes it, and returns its new reference.
///
/// Ctrl-C, or what else a handler of a signal raises that is no Exception, may arrive in Python code around the vendor's
/// call, and whether before or after it cannot be known. So there is a second try: if it fails, the first one succeeded,
/// unless `failed` knows better. Then the exception is raised again in this thread, for the caller. Otherwise throws what
/// Python raised.
template <class Call, class Failed>
void call_for_good(Call&& call, Failed&& failed) {
  PyObject* answer = call();
  if (answer == nullptr && !PyErr_ExceptionMatches(PyExc_Exception)) {
    Raised const first;
    answer = call();
    if (answer == nullptr) {
      Raised const second;
      if (failed()) {
        second.raise_again();
      } else {
        answer = Py_NewRef(Py_None);
      }
    }
    raise_soon(first);
  }
  if (answer == nullptr) throw_raised();
  Py_DECREF(answer);
}

/// An event object of the Python interface `VendorEvent`.
class PythonEvent : public VendorEvent {
 public:
  /// Take ownership of the reference.
  explicit PythonEvent(PyObject* event) : event_(event) {}
  ~PythonEvent() override {
    Gil const gil;
    Py_DECREF(event_);
  }
  bool done() override {
    Gil const gil;
    return truth(PyObject_CallMethod(event_, "done", nullptr));
  }
  void wait() override {
    Gil const gil;
    drop(PyObject_CallMethod(event_, "wait", nullptr));
  }
  double seconds_since(VendorEvent& earlier) override {
    Gil const gil;
    PyObject* const other = event_cast<PythonEvent>(earlier, "a Python device").event_;
    PyObject* const answer = PyObject_CallMethod(event_, "seconds_since", "(O)", other);
    if (answer == nullptr) throw_raised();
    double const seconds = PyFloat_AsDouble(answer);
    Py_DECREF(answer);
    if (PyErr_Occurred() != nullptr) throw_raised();
    return seconds;
  }
  PyObject* object() const noexcept { return event_; }

 private:
  PyObject* event_;
};

/// The Python object behind an event, borrowed; null if the vendor is not written in Python.
inline PyObject* object_of_event(VendorEvent& event) noexcept {
  auto* const own = dynamic_cast<PythonEvent*>(&event);
  return own == nullptr ? nullptr : own->object();
}

/// A queue object of the Python interface `VendorQueue`, which stays open when this is destroyed.
class PythonQueue : public VendorQueue {
 public:
  /// `queue` is borrowed, as the device of a `PythonDevice` is. The GIL is held.
  explicit PythonQueue(PyObject* queue) : queue_(queue) {
    PyObject* const answer = PyObject_GetAttrString(queue, "waits_for_values");
    waits_for_values_ = truth(answer);
  }

  std::uintptr_t handle() const noexcept override { return 0; }
  void copy(Address dst, Address src, std::uint64_t size) override { call("copy", "KKK", dst, src, size); }
  void copy_2d(Address dst, std::uint64_t dst_pitch, Address src, std::uint64_t src_pitch, std::uint64_t width,
               std::uint64_t height) override {
    call("copy_2d", "KKKKKK", dst, dst_pitch, src, src_pitch, width, height);
  }
  void fill(Address ptr, std::uint32_t value, unsigned bytes, std::uint64_t count) override {
    Gil const gil;
    auto const* const first = reinterpret_cast<char const*>(&value);  // little endian, as all hosts of GPUs are
    drop(PyObject_CallMethod(queue_, "fill", "Ky#K", static_cast<unsigned long long>(ptr), first,
                             static_cast<Py_ssize_t>(bytes), static_cast<unsigned long long>(count)));
  }
  void call(void (*function)(void*), void* argument) override {
    call("call", "KK", reinterpret_cast<Address>(function), reinterpret_cast<Address>(argument));
  }
  bool waits_for_values() const noexcept override { return waits_for_values_; }
  void wait_value(Address address, std::uint32_t value) override { call("wait_value", "KK", address, Address{value}); }
  void write_value(Address address, std::uint32_t value) override {
    call("write_value", "KK", address, Address{value});
  }
  std::unique_ptr<VendorEvent> record() override {
    Gil const gil;
    PyObject* const event = PyObject_CallMethod(queue_, "record", nullptr);
    if (event == nullptr) throw_raised();
    return std::make_unique<PythonEvent>(event);
  }
  void wait(VendorEvent& event) override {
    Gil const gil;
    drop(PyObject_CallMethod(queue_, "wait", "(O)", event_cast<PythonEvent>(event, "a Python queue").object()));
  }
  bool done() override {
    Gil const gil;
    return truth(PyObject_CallMethod(queue_, "done", nullptr));
  }
  void synchronize() override { call("synchronize", nullptr); }
  void close() override { call("close", nullptr); }

 private:
  template <class... Arguments>
  void call(char const* method, char const* format, Arguments... arguments) {
    Gil const gil;
    drop(PyObject_CallMethod(queue_, method, format, static_cast<unsigned long long>(arguments)...));
  }

  PyObject* queue_;
  bool waits_for_values_;
};

/// A device object of the Python interface `Device`, perhaps with memory and queues. Only Python threads call it,
/// because its map is private to Python.
class PythonDevice : public VendorDevice {
 public:
  /// What does not change, and so is read once.
  struct Traits {
    std::string name;
    CoherenceSupport coherence;
    bool has_memory_info;
  };

  /// `device` is borrowed and must outlive this: a reference that the garbage collector cannot see would keep a device
  /// in a cycle with its map forever. `kinds` are those of Python, in the order of `MemoryKind`. The GIL is held.
  PythonDevice(PyObject* device, PyObject* already_pinned_error, PyObject* kinds, Traits traits)
      : device_(device),
        already_pinned_error_(Py_NewRef(already_pinned_error)),
        kinds_(Py_NewRef(kinds)),
        traits_(std::move(traits)) {}
  ~PythonDevice() override {
    forget_staging(*this);
    Gil const gil;
    Py_DECREF(already_pinned_error_);
    Py_DECREF(kinds_);
  }

  std::string const& name() const noexcept override { return traits_.name; }
  CoherenceSupport coherence() const noexcept override { return traits_.coherence; }
  bool is_permanent() const noexcept override { return false; }

  Address lock(Address ptr, std::uint64_t size, LockOptions options) override {
    PythonCall const during;
    PyObject* const read_only = options.access == Access::unknown     ? Py_None
                                : options.access == Access::read_only ? Py_True
                                                                   : Py_False;
    if (options.coherence != Coherence::coarse) {
      return locked_at(PyObject_CallMethod(device_, "data_lock", "KKO", static_cast<unsigned long long>(ptr),
                                           static_cast<unsigned long long>(size), read_only),
                       ptr, size);
    }
    // Only a device with coarse-grained memory accepts a fourth argument. (No destructor may release these objects: it
    // would run without the GIL if the call never returns, see `Gil`.)
    PyObject* const method = PyObject_GetAttrString(device_, "data_lock");
    PyObject* const arguments = Py_BuildValue("(KKO)", static_cast<unsigned long long>(ptr),
                                              static_cast<unsigned long long>(size), read_only);
    PyObject* const named = Py_BuildValue("{sO}", "coherent", Py_False);
    bool const made = method != nullptr && arguments != nullptr && named != nullptr;
    PyObject* const answer = made ? PyObject_Call(method, arguments, named) : nullptr;
    Py_XDECREF(method);
    Py_XDECREF(arguments);
    Py_XDECREF(named);
    return locked_at(answer, ptr, size);
  }

  void unlock(Address ptr) override {
    PythonCall const during;
    call_for_good([&] { return call("data_unlock", ptr); }, [&] { return has_pinned(ptr); });
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
    bool const parsed = three != nullptr && PyArg_ParseTuple(three, "KKK", &base, &size, &device_ptr) != 0;
    Py_XDECREF(three);
    if (!parsed && PyErr_ExceptionMatches(PyExc_TypeError)) {
      PyErr_Clear();
      PyErr_Format(PyExc_TypeError,
                   "%s.is_pinned_ptr returned %R; it must return the base, the size and the device's address of the "
                   "pinned range, or None",
                   traits_.name.c_str(), answer);
    }
    Py_DECREF(answer);
    if (!parsed) throw_raised();
    return Pinned{base, size, device_ptr};
  }

  Address allocate(std::uint64_t size, MemoryKind kind, bool write_combined) override {
    Gil const gil;
    if (write_combined) return address_of(call("allocate_write_combined", size));
    return address_of(PyObject_CallMethod(device_, "allocate", "KO", static_cast<unsigned long long>(size), python(kind)));
  }
  void free(Address ptr, MemoryKind kind) override {
    Gil const gil;
    drop(PyObject_CallMethod(device_, "free", "KO", static_cast<unsigned long long>(ptr), python(kind)));
  }

  std::optional<MemoryInfo> memory_info(Address ptr) override {
    if (!traits_.has_memory_info) return std::nullopt;
    Gil const gil;
    PyObject* const answer = call("memory_info", ptr);
    if (answer == nullptr) throw_raised();
    if (answer == Py_None) {
      Py_DECREF(answer);
      return std::nullopt;
    }
    PyObject *kind = nullptr, *device = nullptr;
    unsigned long long base = 0, size = 0;
    PyObject* const four = PySequence_Tuple(answer);
    Py_DECREF(answer);
    bool const parsed = four != nullptr && PyArg_ParseTuple(four, "OKKO", &kind, &base, &size, &device) != 0;
    auto const is = [&](MemoryKind each) { return kind == python(each); };
    MemoryKind const known = parsed && is(MemoryKind::host)     ? MemoryKind::host
                             : parsed && is(MemoryKind::shared) ? MemoryKind::shared
                                                                : MemoryKind::device;
    int const index = !parsed || device == Py_None ? -1 : static_cast<int>(PyLong_AsLong(device));
    Py_XDECREF(four);
    if (PyErr_Occurred() != nullptr) throw_raised();
    return MemoryInfo{known, base, size, index};
  }

  void copy(Address dst, Address src, std::uint64_t size) override {
    Gil const gil;
    drop(PyObject_CallMethod(device_, "copy", "KKK", static_cast<unsigned long long>(dst),
                             static_cast<unsigned long long>(src), static_cast<unsigned long long>(size)));
  }
  void synchronize() override {
    Gil const gil;
    drop(PyObject_CallMethod(device_, "synchronize", nullptr));
  }

  std::unique_ptr<VendorQueue> make_queue() override { refuse_queue(); }
  std::unique_ptr<VendorQueue> adopt_queue(std::uintptr_t) override { refuse_queue(); }

 private:
  [[noreturn]] void refuse_queue() const {
    throw Unsupported("the queues of " + traits_.name + " are Python's: have Python make them");
  }
  PyObject* python(MemoryKind kind) const noexcept { return PyTuple_GET_ITEM(kinds_, static_cast<Py_ssize_t>(kind)); }
  PyObject* call(char const* method, std::uint64_t word) {
    return PyObject_CallMethod(device_, method, "K", static_cast<unsigned long long>(word));
  }
  /// Whether memory is known to be pinned.
  bool has_pinned(Address ptr) {
    PyObject* const answer = call("is_pinned_ptr", ptr);
    if (answer == nullptr) PyErr_Clear();
    Py_XDECREF(answer);
    return answer != nullptr && answer != Py_None;
  }
  /// What `data_lock` has returned. If that is no address of so many bytes, the memory is unlocked again.
  Address locked_at(PyObject* answer, Address ptr, std::uint64_t size) {
    if (answer == nullptr && PyErr_ExceptionMatches(already_pinned_error_)) throw PythonAlreadyPinned();
    if (answer == nullptr && PyErr_ExceptionMatches(PyExc_MemoryError)) throw PythonNoRoom();
    if (answer == nullptr) throw_raised();
    PyObject* const number = PyNumber_Index(answer);
    Address const found = number == nullptr ? 0 : PyLong_AsUnsignedLongLong(number);
    Py_XDECREF(number);
    bool const is_address = PyErr_Occurred() == nullptr, fits = found + (size - 1) >= found;
    if (!is_address || !fits) {
      PyErr_Clear();
      Py_XDECREF(call("data_unlock", ptr));
      PyErr_Clear();
    }
    if (!is_address) {
      PyErr_Format(PyExc_TypeError,
                   "%s.data_lock returned %R; it must return the device's address of the memory, an integer in "
                   "[0, 2**64)",
                   traits_.name.c_str(), answer);
    }
    Py_DECREF(answer);
    if (!is_address) throw_raised();
    if (!fits) {
      throw InvalidRange(traits_.name + ".data_lock returned " + describe(found) + ", but " + std::to_string(size) +
                         " bytes there pass 2^64");
    }
    return found;
  }

  PyObject* const device_;
  PyObject* const already_pinned_error_;
  PyObject* const kinds_;  // a tuple
  Traits const traits_;
};

/// Run a destructor that may call Python, without disturbing a pending exception.
template <class Body>
void keeping_exception(Body&& body) noexcept {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  body();
  PyErr_Restore(type, value, traceback);
}

/// Destroy a map, and with it the locks it still holds; abandon it instead if it belongs to a parent process.
inline void destroy(MappedLocks* mapped, PinnedMap* map) noexcept {
  if (map != nullptr && map->is_parents()) {
    map->abandon();
    return;
  }
  keeping_exception([&] {
    delete mapped;
    delete map;
  });
}

}  // namespace pinning
