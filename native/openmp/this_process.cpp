// SPDX-License-Identifier: Apache-2.0
#include "this_process.hpp"

#include <sys/mman.h>

#include <new>

namespace pinning::omp {

constinit ThisProcess this_process{};

namespace {

[[gnu::constructor]] void begin() {
  if (madvise(&this_process, sizeof this_process, MADV_WIPEONFORK) != 0) {  // such as in gVisor
    pthread_atfork(nullptr, nullptr, [] { new (&this_process) ThisProcess{}; });
  }
  this_process.began = true;
}

}  // namespace

}  // namespace pinning::omp
