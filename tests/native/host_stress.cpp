// SPDX-License-Identifier: Apache-2.0
// Queues of the host that copy, wait for each other by events and by values, are adopted, and are destroyed with work
// pending or waited for; memory that is allocated, locked in overlapping parts and freed; with a third argument the
// process forks meanwhile: host_stress [SECONDS] [SEED] [forks]
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "../../native/vendors/devices.hpp"
#include "expect.hpp"

using namespace pinning;

namespace {

VendorDevice& host() {
  static VendorDevice& only = *host_vendor.make(0).release();
  return only;
}
Address address(void const* pointer) { return reinterpret_cast<Address>(pointer); }

/// Pass bytes from one buffer to the next, each time by another queue, in the order that events or values impose.
void chain(std::mt19937& chance) {
  constexpr std::size_t size = 3000, links = 5;
  std::vector<std::vector<unsigned char>> buffers(links + 1, std::vector<unsigned char>(size));
  std::uint32_t words[links + 1];
  std::fill_n(words, links + 1, 0xFFFFFFF0);
  unsigned char const value = static_cast<unsigned char>(chance());
  std::vector<std::unique_ptr<VendorQueue>> queues, adopted;
  std::unique_ptr<VendorEvent> before;
  for (std::size_t i = 0; i < links; ++i) queues.push_back(host().make_queue());
  for (auto const& queue : queues) adopted.push_back(host().adopt_queue(queue->handle()));
  bool const by_values = chance() % 2 != 0;
  for (std::size_t i = 0; i < links; ++i) {
    VendorQueue& queue = chance() % 2 != 0 ? *queues[i] : *adopted[i];
    if (by_values) {
      queue.wait_value(address(&words[i]), 0xFFFFFFFF + static_cast<std::uint32_t>(i));  // the values wrap
    } else if (before) {
      queue.wait(*before);
    }
    if (i == 0) {
      queue.fill(address(buffers[1].data()), value * 0x01010101u, chance() % 2 != 0 ? 1 : 4, 0);
      queue.fill(address(buffers[1].data()), value * 0x01010101u, 4, size / 4);
    } else {
      queue.copy_2d(address(buffers[i + 1].data()), 30, address(buffers[i].data()), 30, 30, size / 30);
    }
    queue.write_value(address(&words[i + 1]), static_cast<std::uint32_t>(i));
    before = queue.record();
  }
  if (by_values) std::atomic_ref(words[0]).store(0xFFFFFFFF);
  switch (chance() % 3) {
    case 0: before->wait(); break;
    case 1: queues.back()->synchronize(); break;
    case 2:
      queues.clear();  // submitted work completes nevertheless
      while (!before->done()) std::this_thread::yield();
  }
  for (unsigned char const byte : buffers[links]) expect(byte == value, "a byte did not arrive in its turn");
}

/// Allocate memory of each kind and lock overlapping parts of it.
void memory(std::mt19937& chance) {
  constexpr std::uint64_t page = 4096;
  for (auto const kind : {MemoryKind::host, MemoryKind::device, MemoryKind::shared}) {
    std::uint64_t const size = page * (1 + chance() % 5);  // small: three threads must fit in 64 KiB
    Address const ptr = host().allocate(size, kind);
    auto const info = host().memory_info(ptr + size - 1);
    expect(info && info->base == ptr && info->size == size && info->kind == kind, "memory_info tells something else");
    std::vector<Address> held;
    for (int i = 0; i < 4; ++i) {
      Address const start = ptr + 1 + chance() % (size - 1);
      host().lock(start, 1 + chance() % (ptr + size - start), {});
      held.push_back(start);
    }
    for (Address const start : held) {
      auto const around = host().is_pinned(start);
      expect(around && around->base <= start && start < around->base + around->size, "a locked range is not known");
      host().unlock(start);
    }
    expect(host().is_pinned(ptr).has_value() == (kind == MemoryKind::host), "a lock is left over");
    std::memset(reinterpret_cast<void*>(ptr), 1, size);
    host().free(ptr, kind);
  }
}

void fork_once(std::mt19937& chance) {
  auto const queue = host().make_queue();
  auto const event = queue->record();
  pid_t const child = fork();
  if (child == 0) {
    alarm(600);
    host().after_fork();
    try {
      queue->record();
      std::_Exit(1);
    } catch (std::runtime_error const&) {
    }
    chain(chance);
    memory(chance);
    std::_Exit(0);
  }
  int status = 0;
  expect(waitpid(child, &status, 0) == child && status == 0, "the child of a fork did not do its work");
  event->wait();
}

}  // namespace

int main(int argc, char** argv) {
  double const seconds = argc > 1 ? std::atof(argv[1]) : 2;
  unsigned const seed = argc > 2 ? static_cast<unsigned>(std::atol(argv[2])) : 1;
  bool const forks = argc > 3;
  auto const end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  std::atomic<long> rounds = 0;
  std::vector<std::thread> threads;
  for (unsigned number = 0; number < 3; ++number) {
    threads.emplace_back([&, number] {
      std::mt19937 chance(seed * 100 + number);
      while (std::chrono::steady_clock::now() < end) {
        chain(chance);
        memory(chance);
        if (forks && number == 0) fork_once(chance);
        ++rounds;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  host().synchronize();
  std::printf("%ld rounds, all right\n", rounds.load());
}
