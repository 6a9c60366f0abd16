// SPDX-License-Identifier: Apache-2.0
// How many processors this process may use: processors ROOT, where /proc and /sys are.
#include "../../native/base/processors.hpp"

#include <cstdio>

int main(int, char** arguments) { std::printf("%u\n", pinning::usable_processors(arguments[1])); }
