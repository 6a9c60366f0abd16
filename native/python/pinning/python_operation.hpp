// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

#include <atomic>
#include <new>
#include <pinning/operation.hpp>
#include <utility>

#include "python_errors.hpp"

namespace pinning {

/// An operation of Python for a lane of C++. Whichever thread destroys it, its objects are released by the next one that
/// has the GIL and calls `release_dropped`: neither the lane nor the vendor waits for the GIL.
class PythonOperation final : public Operation {
 public:
  using Submit = int (*)(PyObject* work, PyObject* vendor, VendorQueue& queue);  // -1: Python has raised
  using Keeps = bool (*)(PyObject* work, void const* object);

  /// `work` is submitted by `native`, which belongs to it, or if that is null by `submit`, which gets the borrowed
  /// `vendor`. `kept` is a tuple of what to keep, and so is the work itself if it `is_work`. The GIL is held.
  PythonOperation(PyObject* work, PyObject* kept, PyObject* vendor, Operation* native, Span written, bool is_work,
                  Submit submit, Keeps keeps) noexcept
      : work_(Py_NewRef(work)), kept_(Py_NewRef(kept)), vendor_(vendor), native_(native), written_(written),
        is_work_(is_work), submit_(submit), keeps_(keeps) {}

  void submit(VendorQueue& queue) override {
    if (native_ != nullptr) return native_->submit(queue);
    if (work_ == Py_None) return;
    Gil const gil;
    if (submit_(work_, vendor_, queue) < 0) throw_raised();
  }
  bool keeps_any() const noexcept override { return is_work_ || PyTuple_GET_SIZE(kept_) != 0; }
  bool outlasts_refusal() const noexcept override { return native_ == nullptr || native_->outlasts_refusal(); }
  Span written() const noexcept override { return native_ != nullptr ? native_->written() : written_; }
  bool writes_unknown() const noexcept override {
    return native_ != nullptr ? native_->writes_unknown() : work_ != Py_None && !is_work_;
  }
  /// The GIL is held.
  bool keeps(void const* object) const noexcept override {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(kept_); ++i) {
      if (PyTuple_GET_ITEM(kept_, i) == object) return true;
    }
    return is_work_ && keeps_(work_, object);
  }
  void abandon() noexcept override {
    if (native_ != nullptr) native_->abandon();
  }

  static void operator delete(PythonOperation* dropped, std::destroying_delete_t) noexcept {
    dropped->next_ = last_dropped.load(std::memory_order_relaxed);
    while (!last_dropped.compare_exchange_weak(dropped->next_, dropped, std::memory_order_release,
                                               std::memory_order_relaxed)) {
    }
  }

  /// Release the objects of what was dropped, which may run any code, and at exit end the thread in it. The GIL is held.
  /// One by one, in the order in which they were dropped: while one of them lets other threads run, such as the unlock
  /// that ends a copy, a thread that has waited for another copy finds that copy's objects here and releases them.
  static void release_dropped() {
    for (;;) {
      if (last_dropped.load(std::memory_order_relaxed) != nullptr) collect();
      PythonOperation* const gone = first_collected;
      if (gone == nullptr) return;
      first_collected = gone->next_;
      PyObject *const work = gone->work_, *const kept = gone->kept_;
      gone->~PythonOperation();
      ::operator delete(gone);
      Py_DECREF(work);
      Py_DECREF(kept);
    }
  }

 private:
  /// Put what was dropped behind what is collected.
  static void collect() noexcept {
    PythonOperation* first = nullptr;
    for (PythonOperation* each = last_dropped.exchange(nullptr, std::memory_order_acquire); each != nullptr;) {
      PythonOperation* const next = std::exchange(each->next_, first);
      first = each;
      each = next;
    }
    PythonOperation** end = &first_collected;
    while (*end != nullptr) end = &(*end)->next_;
    *end = first;
  }

  static inline std::atomic<PythonOperation*> last_dropped = nullptr;  // the latest first
  static inline PythonOperation* first_collected = nullptr;  // (the GIL)

  PyObject *const work_, *const kept_, *const vendor_;
  Operation* const native_;
  Span const written_;
  bool const is_work_;
  Submit const submit_;
  Keeps const keeps_;
  PythonOperation* next_ = nullptr;
};

}  // namespace pinning
