// SPDX-License-Identifier: Apache-2.0
// Locking and unlocking part of a locked region, in C++: `pairs ROUNDS MOST_REGIONS [LLVM_MAP.so]`.
#include <dlfcn.h>

#include <memory>

#include "no_vendor.hpp"
#include "rounds.hpp"
#include "workload.hpp"

using workload::Address;

namespace {

constexpr std::size_t part = 64;  // bytes

/// `llvm_map.cpp`, if it could be compiled.
class Llvm {
 public:
  explicit Llvm(char const* path) : library_(dlopen(path, RTLD_NOW)) {
    if (library_ == nullptr) throw std::runtime_error(dlerror());
    if (function<int()>("llvm_devices")() == 0) throw std::runtime_error("LLVM's offload runtime found no device");
  }
  void lock(Address address, std::size_t size) const {
    function<void(Address, std::size_t)>("llvm_lock")(address, size);
  }
  void unlock(Address address) const { function<void(Address)>("llvm_unlock")(address); }
  double pairs(std::vector<Address> const& addresses) const {
    auto* const call = function<double(Address const*, std::size_t, std::size_t)>("llvm_pairs");
    return call(addresses.data(), addresses.size(), part);
  }

 private:
  template <class Function>
  Function* function(char const* name) const {
    return reinterpret_cast<Function*>(dlsym(library_, name));
  }
  void* library_;
};

double pairs(pinning::PinnedMap& map, std::vector<Address> const& addresses) {
  double const begin = rounds::now();
  for (Address const address : addresses) {
    rounds::keep(map.lock(address, part).device_ptr);
    map.unlock(address);
  }
  return (rounds::now() - begin) / static_cast<double>(addresses.size());
}

void measure(std::size_t count, std::size_t total_rounds, Llvm const* llvm) {
  workload::Random random(count);
  auto const ranges = workload::pages(count);
  NoVendor vendor;
  pinning::PinnedMap map(vendor);
  for (auto const& range : ranges) {
    map.lock(range.start, range.size);
    if (llvm != nullptr) llvm->lock(range.start, range.size);
  }
  std::vector<Address> addresses(1 << 16);
  rounds::Case figures("pairs", "4 KiB", count);
  std::vector<std::function<void()>> turns;
  turns.push_back([&] { figures.add("lock + unlock in C++", "ns", "PinnedMap", pairs(map, addresses)); });
  if (llvm != nullptr)
    turns.push_back([&] { figures.add("lock + unlock in C++", "ns", "LLVM", llvm->pairs(addresses)); });
  rounds::take_turns(total_rounds, turns, [&] {
    for (Address& address : addresses) address = ranges[random() % count].start + random() % (4096 - part);
  });
  figures.print();
  if (llvm != nullptr)
    for (auto const& range : ranges) llvm->unlock(range.start);
}

}  // namespace

int main(int count, char** arguments) {
  std::size_t const total_rounds = std::stoul(arguments[1]), most = std::stoul(arguments[2]);
  std::unique_ptr<Llvm> const llvm(count > 3 ? new Llvm(arguments[3]) : nullptr);
  rounds::stay_on(rounds::cpus().front());
  for (std::size_t const regions : {1, 1'000, 10'000, 100'000})
    if (regions <= most) measure(regions, total_rounds, llvm.get());
}
