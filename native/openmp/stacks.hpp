// SPDX-License-Identifier: Apache-2.0
// The stacks of the threads that use OpenMP. What lies there is never locked: a stack goes, or is used anew, and nobody
// says so.
#pragma once

#include <map>
#include <mutex>

#include "range.hpp"

namespace pinning::omp {

class Stacks {
 public:
  void add_this_thread();
  void remove_this_thread();
  bool meet(Range const& range);

 private:
  std::mutex mutex_;
  std::map<Address, Address> ends_;  // by start
};

}  // namespace pinning::omp
