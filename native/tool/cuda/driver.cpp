// SPDX-License-Identifier: Apache-2.0
#include "driver.hpp"

#include <atomic>

namespace pinning::tool::cuda {

namespace {

template <class Function>
bool find(char const* name, Function*& function) noexcept {
  function = reinterpret_cast<Function*>(driver_symbol(name));
  return function != nullptr;
}

enum class Known : char { nothing, all, lacks_some };

}  // namespace

// Concurrent first calls write the same words.
Driver const* Driver::get() noexcept {
  static constinit std::atomic<Known> known = Known::nothing;
  static constinit Driver driver{};
  Known state = known.load(std::memory_order_acquire);
  if (state == Known::nothing) {
    Driver loaded;
#define PINNING_FIND(name, ...) find(#name, loaded.name) &&
    bool const all = PINNING_PRELOAD_FUNCTIONS(PINNING_FIND) true;
#undef PINNING_FIND
    if (all) {
      keep_library_of(reinterpret_cast<void*>(loaded.cuMemcpyAsync));
      driver = loaded;
    }
    state = all ? Known::all : Known::lacks_some;
    known.store(state, std::memory_order_release);
  }
  return state == Known::all ? &driver : nullptr;
}

}  // namespace pinning::tool::cuda
