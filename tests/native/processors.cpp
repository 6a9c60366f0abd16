// SPDX-License-Identifier: Apache-2.0
// Print how many processors this process may use: processors ROOT, the folder of /proc and /sys.
#include "../../native/base/processors.hpp"

#include <cstdio>

int main(int, char** arguments) { std::printf("%u\n", pinning::usable_processors(arguments[1])); }
