// SPDX-License-Identifier: Apache-2.0
// A locker written in C.
#pragma once

#include <pinning/locker.hpp>

#include "c_arguments.hpp"

namespace pinning {

/// Call the program's function `name`; a status other than PINNING_OK goes to `refused`, with its text. A number that is
/// no status is PINNING_UNKNOWN_ERROR.
template <class Function, class Refused>
void call_c(char const* name, Function&& function, Refused&& refused) {
  unsigned const before = failures();
  pinning_status const status = function();
  if (status == PINNING_OK) return;
  bool const is_known = status <= PINNING_UNKNOWN_ERROR;
  std::string const text =
      failures() != before ? pinning_last_error()
      : is_known ? pinning_error_string(status)
                 : std::string(name) + " returned " + std::to_string(status) + ", which is no pinning_status";
  refused(is_known ? status : PINNING_UNKNOWN_ERROR, text.c_str());
}

class CLocker : public Locker {
 public:
  explicit CLocker(pinning_locker const& functions) : functions_(functions) {}

  Address lock(Address ptr, std::uint64_t size, LockOptions) override {
    void* device_ptr = nullptr;
    call("the locker's lock", [&] { return functions_.lock(functions_.self, pointer(ptr), size, &device_ptr); });
    return reinterpret_cast<Address>(device_ptr);
  }

  void unlock(Address ptr) override {
    call("the locker's unlock", [&] { return functions_.unlock(functions_.self, pointer(ptr)); });
  }

  std::optional<Pinned> is_pinned(Address ptr) override {
    pinning_pinned pinned{};
    bool found = true;
    call("the locker's is_pinned", [&] {
      pinning_status const status = functions_.is_pinned(functions_.self, pointer(ptr), &pinned);
      found = status == PINNING_OK;
      return status == PINNING_NOT_LOCKED ? PINNING_OK : status;
    });
    if (!found) return std::nullopt;
    return Pinned{reinterpret_cast<Address>(pinned.base), pinned.size, reinterpret_cast<Address>(pinned.device_ptr)};
  }

 private:
  template <class Function>
  static void call(char const* name, Function&& function) {
    call_c(name, function, [](pinning_status status, char const* text) {
      if (status == PINNING_ALREADY_PINNED) throw AlreadyPinned(text);
      throw CError(status, text);
    });
  }

  pinning_locker const functions_;
};

}  // namespace pinning
