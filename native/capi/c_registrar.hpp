// SPDX-License-Identifier: Apache-2.0
// A registrar written in C.
#pragma once

#include <pinning/registrar.hpp>
#include <string>

#include "c_locker.hpp"

namespace pinning {

class CRegistrar : public Registrar {
 public:
  explicit CRegistrar(pinning_registrar const& functions)
      : functions_(functions), name_(functions.name == nullptr ? "" : functions.name) {}

  void* self() const noexcept { return functions_.self; }
  std::uint64_t piece() const noexcept override { return functions_.piece; }

  void* add(Address ptr, std::uint64_t size) override {
    void* known_as = nullptr;
    call([&] { return functions_.add(functions_.self, reinterpret_cast<void*>(ptr), size, &known_as); });
    return known_as;
  }
  void remove(void* known_as) override {
    call([&] { return functions_.remove(functions_.self, known_as); });
  }

 private:
  template <class Function>
  void call(Function&& function) {
    call_c(function, [&](pinning_status status, char const* text) {
      throw CLockerError(status, ("the registrar " + name_ + " refused: " + text).c_str());
    });
  }

  pinning_registrar const functions_;
  std::string const name_;
};

}  // namespace pinning
