// SPDX-License-Identifier: Apache-2.0
// Descriptors that the tool writes to. The program may close them, and have their numbers for files of its own, so each
// write looks first whose it is. Without stdio: a child of fork would write the parent's buffer a second time, and a
// killed process would lose it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "../base/file_identity.hpp"

namespace pinning::omp {

class Output {
 public:
  /// The standard error that this process began with.
  static Output& standard_error();
  /// A file that is not there yet. Where it is, another process of this run has made it, or it is of an earlier run: then
  /// one with the process's number in its name. Throws std::system_error.
  static Output create(std::string const& path);

  Output(Output&& other) noexcept;
  ~Output();

  std::string const& path() const noexcept { return path_; }
  /// All of it at once. False, and errno says why, where it could not be written: EBADF where the descriptor is not ours,
  /// EMFILE where there is none left to open the file again.
  bool write(std::string_view text) noexcept;

 private:
  Output(int descriptor, std::string path) noexcept;
  bool is_ours() const noexcept { return identity_.is_of(descriptor_); }

  int descriptor_;
  std::string path_;  // of a file that this made
  FileIdentity identity_;
};

/// One line on standard error, the first time that this text comes.
void say(std::string const& text);

/// "12.5 MiB"
std::string in_units(std::size_t bytes);

/// With so many digits after the point, which is one in every locale.
std::string decimal(double value, int digits);

}  // namespace pinning::omp
