// SPDX-License-Identifier: Apache-2.0
#include "processors.hpp"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <thread>

namespace pinning {

namespace {

unsigned in_affinity() noexcept {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return static_cast<unsigned>(CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

/// Number of processors that a group's quota allows; the largest number if it has none.
unsigned in_quota(std::string const& group, bool unified) {
  long quota = -1, period = 0;
  if (unified) {
    std::ifstream(group + "/cpu.max") >> quota >> period;  // "max" leaves the quota at -1
  } else {
    std::ifstream(group + "/cpu.cfs_quota_us") >> quota;
    std::ifstream(group + "/cpu.cfs_period_us") >> period;
  }
  return quota > 0 && period > 0 ? static_cast<unsigned>(std::clamp(quota / period, 1L, 1L << 20)) : ~0u;
}

}  // namespace

unsigned usable_processors(std::string const& root) noexcept {
  unsigned count = in_affinity();
  try {
    std::ifstream groups(root + "/proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) {
      auto const first = line.find(':'), second = line.find(':', first + 1);
      if (second == std::string::npos) continue;
      std::string const controllers = "," + line.substr(first + 1, second - first - 1) + ",";
      bool const unified = controllers == ",,";
      if (!unified && controllers.find(",cpu,") == std::string::npos) continue;
      std::string const mount = root + (unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu");
      // In a container the path may be that of the host, while the container's own group is mounted at the top.
      for (std::string path = line.substr(second + 1);; path.resize(path.find_last_of('/'))) {
        count = std::min(count, in_quota(mount + path, unified));
        if (path.find('/') == std::string::npos) break;
      }
    }
  } catch (...) {  // out of memory: what is known by now
  }
  return count;
}

unsigned usable_processors_once() noexcept {
  static constinit std::atomic<unsigned> counted = 0;
  if (counted == 0) counted = usable_processors();
  return counted;
}

}  // namespace pinning
