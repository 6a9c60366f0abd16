// SPDX-License-Identifier: Apache-2.0
// A pinned map in C++ alone, over mlock.
//
//   c++ -std=c++20 $(python -c 'import pinning; print(*(f"-I{d}" for d in pinning.build.include_dirs()))') mlock_map.cpp -pthread
#include <sys/mman.h>

#include <cerrno>
#include <iostream>
#include <map>
#include <mutex>
#include <pinning/pinned_map.hpp>
#include <system_error>
#include <vector>

// The vendor: three functions, called from any thread. (mlock takes whole pages and does not nest; a map in which two
// regions share a page should count per page, as the plugin pinning_host does.)
class MlockLocker : public pinning::Locker {
 public:
  pinning::Address lock(pinning::Address ptr, std::uint64_t size, pinning::LockOptions) override {
    if (mlock(reinterpret_cast<void*>(ptr), size) != 0) throw std::system_error(errno, std::generic_category(), "mlock");
    std::lock_guard const guard(mutex_);
    sizes_[ptr] = size;
    return ptr;  // the device is the CPU, so its address is the same
  }
  void unlock(pinning::Address ptr) override {
    std::lock_guard const guard(mutex_);
    if (munlock(reinterpret_cast<void*>(ptr), sizes_.at(ptr)) != 0) {
      throw std::system_error(errno, std::generic_category(), "munlock");
    }
    sizes_.erase(ptr);
  }
  std::optional<pinning::Pinned> is_pinned(pinning::Address) override { return std::nullopt; }

 private:
  std::mutex mutex_;
  std::map<pinning::Address, std::uint64_t> sizes_;
};

int main() {
  MlockLocker locker;
  pinning::PinnedMap map(locker);  // gone before the locker, and unlocks what is left
  std::vector<char> buffer(1 << 16);
  auto const ptr = reinterpret_cast<pinning::Address>(buffer.data());

  map.lock(ptr, buffer.size());
  map.lock(ptr + 100, 200);  // inside: one more lock of the same region, no vendor call
  std::cout << "locks held: " << map.find(ptr)->references << "\n";
  try {
    map.lock(ptr + 100, buffer.size());
  } catch (pinning::PartialOverlap const& refusal) {
    std::cout << "refused: " << refusal.what() << "\n";
  }
  map.unlock(ptr);
  map.unlock(ptr);
  std::cout << "regions left: " << map.size() << "\n";
}
