// SPDX-License-Identifier: Apache-2.0
// Where in a program's Python the calling thread is.
#pragma once

#include <string>

namespace pinning::preload {

/// "train.py:42 in step": of the program's own files, if it is in one, or else of a library's. Empty in a thread that runs no
/// Python, and where the interpreter has no way to say so to a thread that does not hold it.
std::string python_line();

}  // namespace pinning::preload
