// SPDX-License-Identifier: Apache-2.0
// A queue of a plugin that is written in Python, for native code: for the staging threads and the pools.
#pragma once

#include <pinning/vendor.hpp>
#include <utility>

#include "python_errors.hpp"

namespace pinning {

/// An event object of the Python interface `VendorEvent`.
class PythonEvent : public VendorEvent {
 public:
  /// Takes the reference over.
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
    PyObject* const other = static_cast<PythonEvent&>(earlier).event_;
    PyObject* const answer = PyObject_CallMethod(event_, "seconds_since", "O", other);
    if (answer == nullptr) throw_raised();
    double const seconds = PyFloat_AsDouble(answer);
    Py_DECREF(answer);
    if (PyErr_Occurred() != nullptr) throw_raised();
    return seconds;
  }
  PyObject* object() const noexcept { return event_; }

  static void drop(PyObject* answer) {
    if (answer == nullptr) throw_raised();
    Py_DECREF(answer);
  }
  static bool truth(PyObject* answer) {
    if (answer == nullptr) throw_raised();
    int const is = PyObject_IsTrue(answer);
    Py_DECREF(answer);
    if (is < 0) throw_raised();
    return is != 0;
  }

 private:
  PyObject* event_;
};

/// A queue object of the Python interface `VendorQueue`.
class PythonQueue : public VendorQueue {
 public:
  /// Borrowed: whoever has made this keeps the object. The GIL is held.
  explicit PythonQueue(PyObject* queue) : queue_(queue) {
    PyObject* const answer = PyObject_GetAttrString(queue, "waits_for_values");
    waits_for_values_ = PythonEvent::truth(answer);
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
    PythonEvent::drop(PyObject_CallMethod(queue_, "fill", "Ky#K", static_cast<unsigned long long>(ptr), first,
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
    PythonEvent::drop(PyObject_CallMethod(queue_, "wait", "O", static_cast<PythonEvent&>(event).object()));
  }
  bool done() override {
    Gil const gil;
    return PythonEvent::truth(PyObject_CallMethod(queue_, "done", nullptr));
  }
  void synchronize() override { call("synchronize", nullptr); }
  void close() override { call("close", nullptr); }

 private:
  template <class... Arguments>
  void call(char const* method, char const* format, Arguments... arguments) {
    Gil const gil;
    PythonEvent::drop(PyObject_CallMethod(queue_, method, format, static_cast<unsigned long long>(arguments)...));
  }

  PyObject* queue_;
  bool waits_for_values_;
};

}  // namespace pinning
