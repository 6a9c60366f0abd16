// SPDX-License-Identifier: Apache-2.0
// A call of the C library that failed.
#pragma once

#include <cerrno>
#include <pinning/errors.hpp>

namespace pinning {

/// `code` is its errno.
inline VendorCall failed_call(char const* function, int code, std::string advice) {
  char const* const name = code == EAGAIN   ? "EAGAIN"
                           : code == EINVAL ? "EINVAL"
                           : code == ENOMEM ? "ENOMEM"
                           : code == EPERM  ? "EPERM"
                                            : "unknown";
  return {function, code, name, std::move(advice)};
}

}  // namespace pinning
