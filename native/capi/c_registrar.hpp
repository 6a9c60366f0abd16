// SPDX-License-Identifier: Apache-2.0
// A registrar written in C.
#pragma once

#include <pinning/registrar.hpp>

#include "c_locker.hpp"

namespace pinning {

class CRegistrar : public Registrar {
 public:
  explicit CRegistrar(pinning_registrar const& functions)
      : functions_(functions), name_(functions.name == nullptr ? "without a name" : functions.name) {}

  void const* self() const noexcept override { return functions_.self; }
  std::uint64_t piece() const noexcept override { return functions_.piece; }

  void* add(Address ptr, std::uint64_t size) override {
    void* handle = nullptr;
    call("its add", [&] { return functions_.add(functions_.self, reinterpret_cast<void*>(ptr), size, &handle); });
    return handle;
  }
  void remove(void* handle) override {
    call("its remove", [&] { return functions_.remove(functions_.self, handle); });
  }

 private:
  template <class Function>
  void call(char const* name, Function&& function) {
    call_c(name, function, [&](pinning_status status, char const* text) {
      throw CError(status, ("the registrar " + name_ + " refused: " + text).c_str());
    });
  }

  pinning_registrar const functions_;
  std::string const name_;
};

}  // namespace pinning
