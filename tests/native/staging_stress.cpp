// SPDX-License-Identifier: Apache-2.0
// Staged copies, copies in the host and signals, in queues of simulated devices: staging_stress [SECONDS] [SEED]
//
// A device here has a few channels, each a thread that executes the work of all queues that share it, in the order of
// submission: a wait at the head blocks all work behind it, as on a GPU. The test fails if wrong bytes arrive, if
// memory is accessed too early or too late, or if anything does not end.
#include <fcntl.h>
#include <unistd.h>

#include <pinning/file.hpp>
#include <pinning/staging.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "expect.hpp"

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Random = std::mt19937_64;
using pinning::Address;

constexpr auto patience = 60s;

Address address(void const* ptr) { return reinterpret_cast<Address>(ptr); }
template <class T>
T* pointer(Address ptr) {
  return reinterpret_cast<T*>(ptr);
}

pinning::VendorError refused() { return pinning::VendorError({"submit", 1, "REFUSED", ""}); }

/// Executes its work in order, until it is lost.
class Channel {
 public:
  void put(std::function<void()> work) {
    {
      std::lock_guard const guard(mutex_);
      work_.push_back(std::move(work));
      ++submitted_;
    }
    news_.notify_all();
  }
  std::uint64_t submitted() {
    std::lock_guard const guard(mutex_);
    return submitted_;
  }
  bool done(std::uint64_t position) {
    std::lock_guard const guard(mutex_);
    return finished_ >= position;
  }
  void wait(std::uint64_t position, char const* what) {
    std::unique_lock guard(mutex_);
    if (!news_.wait_for(guard, patience, [&] { return finished_ >= position; })) fail(what);
  }
  void lose() { lost_ = true; }
  bool lost() const { return lost_; }
  void end() {
    put([this] { ended_ = true; });
    thread_.join();
  }

 private:
  void run() {
    while (!ended_) {
      std::function<void()> work;
      {
        std::unique_lock guard(mutex_);
        news_.wait(guard, [&] { return !work_.empty(); });
        work = std::move(work_.front());
        work_.pop_front();
      }
      work();
      {
        std::lock_guard const guard(mutex_);
        ++finished_;
      }
      news_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable news_;
  std::deque<std::function<void()>> work_;
  std::uint64_t submitted_ = 0, finished_ = 0;
  std::atomic<bool> lost_ = false;
  bool ended_ = false;
  std::thread thread_{[this] { run(); }};
};

struct Event : pinning::VendorEvent {
  Event(Channel& on, std::uint64_t at) : channel(on), position(at) {}
  bool done() override { return channel.done(position); }
  void wait() override { channel.wait(position, "an event does not come"); }
  double seconds_since(VendorEvent&) override { return 0; }
  Channel& channel;
  std::uint64_t position;
};

class Queue : public pinning::VendorQueue {
 public:
  explicit Queue(Channel& channel) : channel_(channel) {}

  std::uintptr_t handle() const noexcept override { return 0; }
  void copy(Address dst, Address src, std::uint64_t size) override {
    put([=] { std::memcpy(pointer<char>(dst), pointer<char>(src), size); });
  }
  void copy_2d(Address, std::uint64_t, Address, std::uint64_t, std::uint64_t, std::uint64_t) override { std::abort(); }
  void fill(Address, std::uint32_t, unsigned, std::uint64_t) override { std::abort(); }
  void call(void (*function)(void*), void* argument) override {
    put([=] { function(argument); });
  }
  bool waits_for_values() const noexcept override { return waits; }
  void wait_value(Address word, std::uint32_t value) override {
    Channel& channel = channel_;
    put([=, &channel] {
      auto const& watched = *pointer<std::atomic<std::uint32_t>>(word);
      auto const end = Clock::now() + patience;
      while (static_cast<std::int32_t>(watched.load(std::memory_order_acquire) - value) < 0 && !channel.lost()) {
        if (Clock::now() > end) fail("a queue waits for a word for ever");
        std::this_thread::yield();
      }
    });
  }
  void write_value(Address word, std::uint32_t value) override {
    put([=] { pointer<std::atomic<std::uint32_t>>(word)->store(value, std::memory_order_release); });
  }
  std::unique_ptr<pinning::VendorEvent> record() override {
    put([] {});
    return std::make_unique<Event>(channel_, channel_.submitted());
  }
  void wait(pinning::VendorEvent& event) override {
    Channel& channel = static_cast<Event&>(event).channel;
    std::uint64_t const position = static_cast<Event&>(event).position;
    if (&channel == &channel_) return;
    put([=, &channel] { channel.wait(position, "a queue waits for another for ever"); });
  }
  bool done() override { return channel_.done(channel_.submitted()); }
  void synchronize() override { channel_.wait(channel_.submitted(), "a queue does not end"); }
  void close() override {}

  bool waits = true;
  int refuse_after = -1;  // calls; the next one is refused; -1: none is

 private:
  void put(std::function<void()> work) {
    if (refuse_after >= 0 && refuse_after-- == 0) throw refused();
    Channel& channel = channel_;
    channel.put([work = std::move(work), &channel] {
      if (!channel.lost()) work();
    });
  }

  Channel& channel_;
};

/// Memory that is still allocated when this is destroyed is that of a lost device.
class Memory : public pinning::VendorDevice {
 public:
  ~Memory() override {
    for (Address const ptr : allocated_) std::free(pointer<void>(ptr));
  }
  bool locks_sooner() const noexcept override { return true; }
  Address lock(Address ptr, std::uint64_t, pinning::LockOptions) override {
    std::lock_guard const guard(mutex_);
    if (++locks_ % 4 == 0) throw refused();
    locked_.insert(ptr);
    return ptr;
  }
  void unlock(Address ptr) override {
    std::lock_guard const guard(mutex_);
    if (locked_.erase(ptr) != 1) fail("memory is unlocked that is not locked");
  }
  std::optional<pinning::Pinned> is_pinned(Address) override { std::abort(); }
  std::string const& name() const noexcept override { std::abort(); }
  std::optional<pinning::MemoryInfo> memory_info(Address ptr) override {
    std::lock_guard const guard(mutex_);
    if (!locked_.contains(ptr)) return std::nullopt;
    return pinning::MemoryInfo{pinning::MemoryKind::host, ptr, 0, -1};
  }
  void copy(Address, Address, std::uint64_t) override { std::abort(); }
  void synchronize() override { std::abort(); }
  std::unique_ptr<pinning::VendorQueue> make_queue() override { std::abort(); }
  std::unique_ptr<pinning::VendorQueue> adopt_queue(std::uintptr_t) override { std::abort(); }

  Address allocate(std::uint64_t size, pinning::MemoryKind, bool) override {
    void* const got = std::aligned_alloc(4096, (size + 4095) & ~std::uint64_t{4095});
    if (got == nullptr) throw std::bad_alloc();
    std::lock_guard const guard(mutex_);
    allocated_.insert(address(got));
    return address(got);
  }
  void free(Address ptr, pinning::MemoryKind) override {
    std::lock_guard const guard(mutex_);
    if (allocated_.erase(ptr) != 1) fail("memory is freed that is not allocated");
    std::free(pointer<void>(ptr));
  }

 private:
  std::mutex mutex_;
  std::set<Address> allocated_, locked_;
  unsigned locks_ = 0;
};

struct Device {
  explicit Device(unsigned count) : channels(count) {}
  Channel& channel() { return channels[next++ % channels.size()]; }
  void end() {
    for (auto& each : channels) each.end();
  }

  std::deque<Channel> channels;
  std::atomic<unsigned> next = 0;
  Memory memory;
  std::unique_ptr<pinning::Staging> staging = pinning::make_staging(memory, 100);
};

pinning::StagingLimits small() {
  pinning::StagingLimits limits;
  limits.ring_bytes = 2 << 20;
  limits.staging_bytes = 1 << 30;  // enough on a loaded machine, where rings become idle late
  limits.chunk_bytes = 1 << 20;
  limits.threads = 3;
  limits.threads_to_device = limits.threads_to_host = 2;
  return limits;
}

pinning::StagingLimits const limits = small();
using Toward = pinning::Staging::Toward;

/// Copies and signals of a queue, which must be kept until they are complete.
using Kept = std::vector<std::unique_ptr<pinning::Staged>>;

/// Several times: copy to the device, back, and then within the host or back again, all in one queue.
std::size_t round_trips(Device& device, Queue& queue, Random& random) {
  struct Trip {
    std::vector<char> source, memory, target, copy;
    bool early;
  };
  std::deque<Trip> trips;
  Kept kept;
  std::size_t bytes = 0;
  auto const keep = [&](std::unique_ptr<pinning::Staged> staged) {
    if (staged == nullptr) fail("there is no ring");
    kept.push_back(std::move(staged));
  };
  for (auto count = 1 + random() % 4; count > 0; --count) {
    std::size_t const size = 1 + random() % (random() % 2 ? 100'000 : 3'000'000);
    bool const early = random() % 2;
    auto& trip = trips.emplace_back(Trip{std::vector<char>(size, 'x'), std::vector<char>(size, 'm'),
                                         std::vector<char>(size, 't'), std::vector<char>(size, 'c'), early});
    auto const set = [&trip, seed = random()] {
      Random values(seed);
      for (std::size_t i = 0; i < trip.source.size(); i += 97) trip.source[i] = static_cast<char>(values());
    };
    // A copy that is not early may read no byte before its turn: this is earlier work on the same memory.
    struct Work {
      std::function<void()> set;
    };
    if (early) {
      set();
    } else {
      queue.call([](void* work) { std::unique_ptr<Work>(static_cast<Work*>(work))->set(); }, new Work{set});
    }
    auto const copy = [&](Toward toward, std::vector<char>& dst, std::vector<char> const& src, bool early) {
      keep(device.staging->copy(queue, toward, {{address(dst.data()), address(src.data()), size}}, early, limits));
    };
    copy(Toward::device, trip.memory, trip.source, early);
    copy(Toward::host, trip.target, trip.memory, false);
    if (random() % 2) {
      copy(Toward::in_host, trip.copy, trip.target, false);
    } else {
      copy(Toward::host, trip.copy, trip.memory, false);
    }
    bytes += 3 * size;
  }
  queue.synchronize();
  for (Trip const& trip : trips) {
    if (trip.source != trip.memory) fail("the device has other bytes than the host had");
    if (trip.memory != trip.target) fail("the host has other bytes than the device had");
    if (trip.memory != trip.copy) fail("a copy in the host has other bytes");
  }
  return bytes;
}

/// Queues of two devices take turns by signals; each turn increments a count.
void relay(Device& one, Device& other, Random& random) {
  Device* const devices[] = {&one, &other};
  struct Runner {
    explicit Runner(Device& device) : queue(device.channel()), helper(device.channel()) {}
    Queue queue, helper;
  };
  Runner runners[] = {Runner(one), Runner(other)};
  runners[0].queue.waits = runners[0].helper.waits = random() % 8 != 0;
  std::vector<std::unique_ptr<pinning::VendorEvent>> events;
  Kept kept;
  std::uint64_t number = 0;
  std::uint64_t const rounds = 2 + random() % 20;
  for (std::uint64_t i = 0; i < rounds; ++i) {
    Runner &mine = runners[i % 2], &theirs = runners[(i + 1) % 2];
    if (!events.empty()) {
      theirs.helper.wait(*events.back());
      auto signal = devices[(i + 1) % 2]->staging->signal(theirs.helper);
      auto wait = devices[i % 2]->staging->wait(mine.queue, *signal);
      if (random() % 8 == 0) {
        events.back()->wait();
        signal->give();  // as is done if its device is lost
      }
      kept.push_back(std::move(signal));
      kept.push_back(std::move(wait));
    }
    mine.queue.call([](void* count) { ++*static_cast<std::uint64_t*>(count); }, &number);
    events.push_back(mine.queue.record());
  }
  events.back()->wait();
  if (number != rounds) fail("a queue has not waited for a signal");
  for (auto& runner : runners) runner.queue.synchronize(), runner.helper.synchronize();
}

/// A submission that is refused at any call leaves queue and memory usable for later work.
void refuse(Device& device, Queue& queue, Random& random) {
  std::vector<char> host(1 + random() % 3'000'000), memory(host.size());
  queue.refuse_after = static_cast<int>(random() % 20);
  try {
    bool const to_device = random() % 2;
    auto const& dst = to_device ? memory : host;
    auto const& src = to_device ? host : memory;
    auto const staged = device.staging->copy(queue, to_device ? Toward::device : Toward::host,
                                             {{address(dst.data()), address(src.data()), host.size()}},
                                             to_device && random() % 2, limits);
    queue.refuse_after = -1;
    queue.synchronize();
  } catch (pinning::VendorError const&) {
  }
}

/// A device is lost in the middle: its staged copies can be destroyed, and no thread accesses their memory any more.
void lose(Random& random) {
  Device device(1);
  Queue queue(device.channel());
  std::vector<char> memory(8 << 20);
  {
    std::vector<char> host(8 << 20);
    Address const far = address(memory.data()), near = address(host.data());
    auto const there = device.staging->copy(queue, Toward::device, {{far, near, host.size()}}, random() % 2, limits);
    auto const back = device.staging->copy(queue, Toward::host, {{near, far, host.size()}}, false, limits);
    auto const signal = device.staging->signal(queue);
    auto const wait = device.staging->wait(queue, *signal);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
    device.channels[0].lose();
    if (random() % 2) queue.synchronize();
  }
  device.end();
}

/// A signal that is destroyed before its queue reaches it: nothing waits for it any more.
void a_signal_that_is_given_up(bool waits_for_values) {
  Device one(1), other(1);
  {
    Queue held(one.channel()), waiting(other.channel());
    held.waits = waiting.waits = waits_for_values;
    std::atomic<bool> released = false;
    held.call([](void* released) { static_cast<std::atomic<bool>*>(released)->wait(false); }, &released);
    auto signal = one.staging->signal(held);
    auto const wait = other.staging->wait(waiting, *signal);
    expect(wait != nullptr, "a signal is set too early");
    signal.reset();
    waiting.synchronize();
    released = true;
    released.notify_all();
    held.synchronize();
  }
  one.end();
  other.end();
  one.staging->trim();
  other.staging->trim();
}

/// Copies whose ring has counted from 0 again since then have arrived all the same.
void copies_have_arrived_for_good() {
  Device device(1);
  Queue queue(device.channel());
  std::vector<char> host(100'000), memory(host.size());
  std::vector<pinning::CopyItem> const there{{address(memory.data()), address(host.data()), host.size()}};
  Kept kept;
  for (int i = 0; i < 400; ++i) {
    kept.push_back(device.staging->copy(queue, Toward::device, there, true, limits));
    expect(kept.back() != nullptr, "there is no ring");
    queue.synchronize();
    for (auto const end = Clock::now() + patience; !kept.back()->arrived(); std::this_thread::yield()) {
      expect(Clock::now() < end, "a copy never arrives");
    }
    for (auto const& earlier : kept) expect(earlier->arrived(), "a copy that has arrived is still under way");
  }
  kept.clear();
  device.end();
  device.staging->trim();
}

/// A file that is shorter than was asked for, to the byte, read through the page cache and past it.
void a_file_that_ends_early() {
  char name[] = "staging_stress.XXXXXX";
  int const descriptor = mkstemp(name);
  if (descriptor < 0) return;  // not in a folder that is another user's
  unlink(name);
  std::vector<char> const bytes(3 * 4096, 'x');
  for (std::uint64_t const length : {0, 1, 100, 4095, 4096, 4097, 4196, 8192}) {
    expect(pwrite(descriptor, bytes.data(), bytes.size(), 0) == 3 * 4096, "a file is not written");
    fsync(descriptor);
    posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
    pinning::File file(dup(descriptor));
    file.read_past_cache(0, bytes.size());
    expect(ftruncate(descriptor, static_cast<off_t>(length)) == 0, "a file is not cut");
    std::vector<char> to(bytes.size());
    for (std::uint64_t const offset : {length, length / 2, std::uint64_t{0}}) {
      int const all = length - offset < 8192 ? pinning::File::ended : 0;
      expect(file.read(to.data(), offset, 8192, pinning::File::Memory::ours) == all, "a file that ends early does not say so");
    }
  }
  close(descriptor);
}

}  // namespace

int main(int argc, char** argv) {
  double const seconds = argc > 1 ? std::atof(argv[1]) : 3;
  std::uint64_t const seed = argc > 2 ? std::strtoull(argv[2], nullptr, 0) : 1;
  a_file_that_ends_early();
  copies_have_arrived_for_good();
  for (bool const waits_for_values : {true, false}) a_signal_that_is_given_up(waits_for_values);
  std::atomic<std::size_t> bytes = 0;
  for (unsigned const channels : {1u, 2u, 8u}) {
    auto const end = Clock::now() + std::chrono::duration<double>(seconds / 3);
    Device one(channels), other(channels);
    std::vector<std::thread> threads;
    for (std::uint64_t i = 0; i < 6; ++i) {
      threads.emplace_back([&, i] {
        Random random(seed * 1000 + channels * 10 + i);
        Device& mine = i % 2 ? one : other;
        do {
          Queue queue(mine.channel());
          bytes += round_trips(mine, queue, random);
          if (i < 2) relay(one, other, random);
          if (i == 2) refuse(mine, queue, random);
          if (i == 3 && random() % 4 == 0) lose(random);
          if (i == 4 && random() % 4 == 0) mine.staging->trim();
          queue.synchronize();
        } while (Clock::now() < end);
      });
    }
    for (auto& thread : threads) thread.join();
    one.end();
    other.end();
    one.staging->trim();
    other.staging->trim();
  }
  std::printf("staging: all right, %zu MiB\n", bytes.load() >> 20);
}
