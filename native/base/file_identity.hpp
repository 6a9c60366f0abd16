// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

namespace pinning {

/// The file behind a descriptor of this library: the program may close it and reuse its number for another file.
class FileIdentity {
 public:
  /// Of no file.
  FileIdentity() = default;
  /// Of no file if there is no such descriptor.
  explicit FileIdentity(int descriptor) noexcept {
    struct stat found;
    if (fstat(descriptor, &found) != 0) return;
    known_ = true;
    device_ = found.st_dev;
    inode_ = found.st_ino;
  }

  /// Whether this descriptor refers to that file.
  bool is_of(int descriptor) const noexcept {
    struct stat found;
    return known_ && descriptor >= 0 && fstat(descriptor, &found) == 0 && found.st_dev == device_ &&
           found.st_ino == inode_;
  }

 private:
  bool known_ = false;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace pinning
