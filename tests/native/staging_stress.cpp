// SPDX-License-Identifier: Apache-2.0
// Staged copies in both directions through rings that simulated devices take from: staging_stress [SECONDS] [SEED]
//
// A device here is a thread that does what is in its queue, in order, as a vendor's would: calls, waits for a word,
// copies, writes a word. It fails the test when bytes arrive that were not sent, or when memory is touched too early.
#include <pinning/staging.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>

namespace {

using Clock = std::chrono::steady_clock;
using Random = std::mt19937_64;

[[noreturn]] void violation(std::string const& what) {
  std::printf("VIOLATION: %s\n", what.c_str());
  std::fflush(stdout);
  std::_Exit(1);
}

/// A ring, its counters, and a device's memory. Copies come one after the other.
class Device {
 public:
  Device(pinning::CopyThreads& threads, std::uint64_t seed) : threads_(threads), random_(seed) {
    counters_.taken = counters_.moved = base_ = static_cast<std::uint32_t>(-3);  // they wrap soon
  }

  /// One copy there and one back, queued together; how many bytes went.
  std::size_t round_trip() {
    std::size_t const size = 1 + random_() % (random_() % 2 ? 100'000 : 3'000'000);
    std::vector<char> source(size, 'x'), memory(size), target(size, 'y');
    auto const to = stage(true, source.data(), memory.data(), size);
    auto const back = stage(false, target.data(), memory.data(), size);
    // Before its turn comes no byte may be read or written: this is earlier work on the same memory.
    for (char& byte : source) byte = static_cast<char>(random_());
    run();
    if (source != memory) violation("the device has other bytes than the host had");
    if (memory != target) violation("the host has other bytes than the device had");
    while (!to->over() || !back->over()) std::this_thread::yield();
    return 2 * size;
  }

 private:
  static constexpr std::size_t ring_bytes = 4 * pinning::StagedCopy::piece_bytes;

  std::unique_ptr<pinning::StagedCopy> stage(bool to_device, char* host, char* memory, std::size_t size) {
    std::size_t const chunk = pinning::StagedCopy::piece_bytes << random_() % 2;
    auto const blocks = static_cast<std::uint32_t>(ring_bytes / chunk);
    auto copy = std::make_unique<pinning::StagedCopy>(threads_, to_device, host, size, chunk, ring_.data(), blocks,
                                                      counters_, base_);
    auto& staged = *copy;
    queue_.push_back([&staged] { pinning::StagedCopy::began(&staged); });
    for (std::uint32_t i = 0; i < staged.chunks(); ++i) {
      if (to_device) {
        wait(base_ + i + 1);
      } else if (i >= blocks) {
        wait(base_ + i + 1 - blocks);
      }
      queue_.push_back([&staged, to_device, memory, chunk, i] {
        char* const there = memory + i * chunk;
        char* const block = staged.block(i);
        std::memcpy(to_device ? there : block, to_device ? block : there, staged.bytes(i));
      });
      std::uint32_t const value = base_ + i + 1;
      queue_.push_back([this, value] { counters_.taken.store(value, std::memory_order_release); });
    }
    base_ += staged.chunks();
    if (!to_device) wait(base_);
    return copy;
  }

  void wait(std::uint32_t value) {
    queue_.push_back([this, value] {
      while (static_cast<std::int32_t>(moved(counters_) - value) < 0) std::this_thread::yield();
    });
  }

  void run() {
    for (auto const& operation : queue_) {
      if (random_() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random_() % 200));
      operation();
    }
    queue_.clear();
  }

  pinning::CopyThreads& threads_;
  Random random_;
  pinning::StagingCounters counters_;
  std::uint32_t base_;
  std::vector<char> ring_ = std::vector<char>(ring_bytes);
  std::vector<std::function<void()>> queue_;
};

/// A device that is lost in the middle: its threads let go of the copy when they are told.
void lose(pinning::CopyThreads& threads) {
  std::vector<char> host(8 << 20), ring(1 << 20);
  pinning::StagingCounters counters;
  pinning::StagedCopy copy(threads, true, host.data(), host.size(), 256 << 10, ring.data(), 4, counters, 0);
  pinning::StagedCopy::began(&copy);
  while (moved(counters) != 4) std::this_thread::yield();  // as far as the ring reaches
  if (copy.over()) violation("a copy is over that the device has not taken");
  copy.abandon();
  while (!copy.over()) std::this_thread::yield();
}

}  // namespace

int main(int argc, char** argv) {
  double const seconds = argc > 1 ? std::atof(argv[1]) : 3;
  std::uint64_t const seed = argc > 2 ? std::strtoull(argv[2], nullptr, 0) : 1;
  auto const end = Clock::now() + std::chrono::duration<double>(seconds);
  std::atomic<std::size_t> bytes = 0;
  {
    pinning::CopyThreads threads(3);
    std::vector<std::jthread> devices;
    for (std::uint64_t i = 0; i < 3; ++i) {
      devices.emplace_back([&, i] {
        Device device(threads, seed * 10 + i);
        while (Clock::now() < end) bytes += device.round_trip();
      });
    }
    lose(threads);
    devices.clear();
  }
  std::printf("staging: all right, %zu MiB\n", bytes.load() >> 20);
}
