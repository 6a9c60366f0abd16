// SPDX-License-Identifier: Apache-2.0
// Looking up locked memory while a vendor's call takes one second: `vendor_call ROUNDS MOST_REGIONS`.
#include <atomic>
#include <chrono>
#include <thread>

#include "no_vendor.hpp"
#include "rounds.hpp"
#include "workload.hpp"

using workload::Address;

namespace {

constexpr auto second = std::chrono::seconds(1);

/// Locks nothing either, but takes a second for ranges of more than a page.
class SlowVendor : public NoVendor {
 public:
  std::atomic<bool> calling = false;

  Address lock(Address ptr, std::uint64_t size, pinning::LockOptions) override {
    if (size > 4096) {
      calling = true;
      calling.notify_one();
      std::this_thread::sleep_for(second);
      calling = false;
    }
    return ptr;
  }
};

struct Times {
  double find, pair;  // nanoseconds each
};

/// For 0.15 s each: `find`, and lock and unlock of a locked range.
Times time_calls(pinning::PinnedMap& map, std::vector<Address> const& queries) {
  auto const time = [&](auto call) {
    std::size_t done = 0;
    double const begin = rounds::now();
    double elapsed = 0;
    for (; elapsed < 0.15e9; elapsed = rounds::now() - begin, done += queries.size())
      for (Address const address : queries) call(address);
    return elapsed / static_cast<double>(done);
  };
  double const find = time([&](Address address) {
    auto const region = map.find(address);
    rounds::keep(region ? region->device_ptr_of(address) : 0);
  });
  double const pair = time([&](Address address) {
    rounds::keep(map.lock(address, 1).device_ptr);
    map.unlock(address);
  });
  return {find, pair};
}

}  // namespace

int main(int, char** arguments) {
  std::size_t const total_rounds = std::stoul(arguments[1]), count = 1'000;
  auto const cpus = rounds::cpus();
  rounds::stay_on(cpus.front());
  workload::Random random(1);
  auto const ranges = workload::pages(count);
  std::vector<Address> queries(1 << 16);
  for (Address& address : queries) address = workload::present(ranges, random);

  SlowVendor vendor;
  pinning::PinnedMap map(vendor);
  for (auto const& range : ranges) map.lock(range.start, range.size);

  rounds::Case figures("vendor", "4 KiB", count);
  std::string const name = "PinnedMap";
  for (std::size_t round = 0; round < total_rounds; ++round) {
    Times const before = time_calls(map, queries);
    Address const elsewhere = ranges.back().end() + 8192;
    std::thread locking([&] {
      rounds::stay_on(cpus.back());
      map.lock(elsewhere, 8192);
    });
    vendor.calling.wait(false);
    Times const during = time_calls(map, queries);
    bool const covered = vendor.calling;
    locking.join();
    map.unlock(elsewhere);
    Times const after = time_calls(map, queries);
    Times const alone{(before.find + after.find) / 2, (before.pair + after.pair) / 2};
    if (!covered) throw std::runtime_error("the vendor's call was over before the lookups were");
    figures.add("find alone", "ns", name, alone.find);
    figures.add("find during the call", "ns", name, during.find);
    figures.add("find, slowdown", "x", name, during.find / alone.find);
    figures.add("lock + unlock of a locked range, slowdown", "x", name, during.pair / alone.pair);
  }
  figures.print();
}
