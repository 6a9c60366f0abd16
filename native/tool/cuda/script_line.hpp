// SPDX-License-Identifier: Apache-2.0
// The line of Python code that the calling thread executes.
#pragma once

#include <string>

namespace pinning::tool::cuda {

/// For example "train.py:42 in step": the innermost line in the program's own files, otherwise in a library. Empty in a
/// thread that runs no Python, or if the interpreter does not export a way to find out without the GIL.
std::string python_line();

}  // namespace pinning::tool::cuda
