// SPDX-License-Identifier: Apache-2.0
// Descriptors that the process keeps.
#pragma once

#include <fcntl.h>
#include <unistd.h>

namespace pinning {

/// The same file, but not as 0, 1 or 2: a program that has closed these opens another file there, and expects that number.
/// -1 and errno if there is none.
inline int above_streams(int descriptor) noexcept {
  if (descriptor < 0 || descriptor > STDERR_FILENO) return descriptor;
  int const above = fcntl(descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  close(descriptor);
  return above;
}

}  // namespace pinning
