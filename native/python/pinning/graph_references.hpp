// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

#include <atomic>

namespace pinning {

/// References of one recorded operation. The GIL guards the list of live ones; any thread may add to the released.
struct Recorded {
  PyObject* kept;  // a tuple: the work and a tuple of objects
  Recorded *previous, *next;
  Recorded* next_released;
};

inline std::atomic<Recorded*> released_operations;

inline void release_recorded(void* object) {
  auto* const recorded = static_cast<Recorded*>(object);
  recorded->next_released = released_operations.load(std::memory_order_relaxed);
  while (!released_operations.compare_exchange_weak(recorded->next_released, recorded, std::memory_order_release,
                                                    std::memory_order_relaxed)) {
  }
}

inline Recorded* new_recorded(PyObject* kept) { return new Recorded{kept, nullptr, nullptr, nullptr}; }
inline void delete_recorded(Recorded* recorded) { delete recorded; }
inline Recorded* take_released() { return released_operations.exchange(nullptr, std::memory_order_acquire); }

}  // namespace pinning
