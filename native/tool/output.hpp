// SPDX-License-Identifier: Apache-2.0
// Descriptors that the tool writes to. The program may close them and reuse their numbers for its own files, so each
// write first checks that the descriptor is still ours. Without stdio: a forked child would write the parent's buffer a
// second time, and a killed process would lose it.
#pragma once

#include <string>
#include <string_view>

#include "../base/file_identity.hpp"

namespace pinning::tool {

class Output {
 public:
  /// The standard error that this process began with.
  static Output& standard_error();
  /// Create a file. If another process of this run or an earlier run has written it, create one with the process ID in
  /// its name instead. A device, a pipe or an open file, such as /dev/stdout, is appended to. Throws std::system_error.
  static Output create(std::string const& path);

  /// Whether `create` has created such a file, and a process has written it.
  static bool is_written(std::string const& path);

  Output(Output&& other) noexcept;
  ~Output();

  std::string const& path() const noexcept { return path_; }
  /// Write all of it at once. False, with errno, if that fails: EBADF if the descriptor is not ours, EMFILE if none is
  /// left to open the file again.
  bool write(std::string_view text) noexcept;

 private:
  Output(int descriptor, std::string path) noexcept;
  bool is_ours() const noexcept { return identity_.is_of(descriptor_); }

  int descriptor_;
  std::string path_;  // of a file from `create`
  FileIdentity identity_;
};

/// Write a line to standard error, but each text only once.
void say(std::string const& text);

/// "12.5 MiB"
std::string in_units(std::size_t bytes);

/// With `digits` digits after the decimal point, which is a point in every locale.
std::string decimal(double value, int digits);

}  // namespace pinning::tool
