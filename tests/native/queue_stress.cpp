// SPDX-License-Identifier: Apache-2.0
// Threads that never saw Python submit to shared queues of the host, in and out of order, own and adopted, wait for
// events, poll, close and meet refusals: every byte arrives in its turn, and no operation is destroyed before it is
// complete, or never. They allocate and free in these queues from one pool, whose source refuses now and then: no block
// is used again before its turn, and every byte goes back to the source:
// queue_stress [SECONDS] [SEED]
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <pinning/pool.hpp>
#include <pinning/queue.hpp>
#include <random>
#include <thread>
#include <vector>

#include "expect.hpp"

using namespace pinning;

namespace {

using Buffer = std::vector<unsigned char>;
constexpr std::size_t bytes = 2000;

Address address(void const* pointer) { return reinterpret_cast<Address>(pointer); }

std::atomic<int> alive = 0;  // operations

/// A copy whose source must not be read early. When it is destroyed, its bytes must have arrived.
class Step final : public CopyOperation {
 public:
  Step(Buffer& dst, Buffer const& src, unsigned char value, bool refused)
      : dst_(dst), src_(src), value_(value), refused_(refused) {
    ++alive;
  }
  ~Step() override {
    --alive;
    expect(!any_submitted_ || dst_.back() == value_, "an operation was destroyed before it was complete");
  }

  CopyPath path() const noexcept override { return CopyPath::plain; }
  Reason reason() const noexcept override { return Reason::in_host; }
  Span written() const noexcept override { return {address(dst_.data()), address(dst_.data() + dst_.size())}; }

 private:
  void submit_all(VendorQueue& queue) override {
    if (refused_) throw VendorError({"submit", 7, "refused", ""});
    queue.copy(address(dst_.data()), address(src_.data()), dst_.size());
    any_submitted_ = true;
  }

  Buffer& dst_;
  Buffer const& src_;
  unsigned char const value_;
  bool const refused_;
};

using Queues = std::vector<std::unique_ptr<Queue>>;

void drain(Queue& queue) {
  for (auto const& lane : queue.lanes()) lane->drain();
}

/// Pass bytes from one buffer to the next, each time in a queue by lot, after the event of the one before.
void pass_on(Queues const& queues, std::mt19937& chance) {
  std::array<Buffer, 7> buffers;
  for (Buffer& each : buffers) each.resize(bytes);
  auto const value = static_cast<unsigned char>(1 + chance() % 255);
  std::fill(buffers[0].begin(), buffers[0].end(), value);
  std::optional<Event> before;
  std::vector<Event> events;
  for (std::size_t i = 0; i + 1 < buffers.size(); ++i) {
    Queue& queue = *queues[chance() % queues.size()];
    Events const after = before ? Events{&*before} : Events{};
    if (chance() % 4 == 0) {
      auto const submit = [&] { queue.submit(std::make_unique<Step>(buffers[i + 1], buffers[i], value, true), after); };
      expect(throws<VendorError>(submit), "a refusal was not reported");
    }
    Buffer const& source = buffers[i];
    auto step = std::make_unique<Step>(buffers[i + 1], source, value, false);
    if (chance() % 3 == 0) {  // the event of all so far instead
      queue.submit(std::move(step), after);
      Event end;
      std::unique_ptr<Operation> point;
      before = queue.ordered() && queue.first().submit_at_once(point, end) ? end : queue.record();
    } else {
      Event const last = before.value_or(Event());
      before = queue.submit(std::move(step), after);
      Span const written{address(buffers[i + 1].data()), address(buffers[i + 1].data() + bytes)};
      expect(queue.may_write(written, {}) || before->done(), "a queue forgot what pending work writes");
      Dependencies history;
      before->add_history(history);
      expect(last.is_over() || history.covers(*last.timeline(), last.position()), "an event forgot what it waited for");
    }
    if (chance() % 3 == 0) events.push_back(*before);
    if (chance() % 3 == 0) queue.first().poll();
    if (chance() % 8 == 0) queue.wait({&*before});
  }
  if (chance() % 4 == 0) {
    while (!before->done()) std::this_thread::yield();
  } else {
    before->wait();
  }
  expect(before->done(), "an event that was waited for is not done");
  for (unsigned char const byte : buffers.back()) expect(byte == value, "a byte did not arrive in its turn");
  for (Event& each : events) expect(each.done(), "what came before a reached event is not done");
  for (auto const& queue : queues) drain(*queue);  // so that no operation refers to the buffers
}

/// A queue that is closed while another thread submits: accepted operations are complete, and the rest are refused.
void close_beside(VendorDevice& device, std::mt19937& chance) {
  auto const queue = Queue::make(device, true);
  Buffer const source(bytes, 5);
  std::vector<Buffer> buffers(20, Buffer(bytes));
  std::size_t accepted = 0;
  std::optional<Event> last;
  std::thread submitter([&] {
    for (Buffer& each : buffers) {
      try {
        last = queue->submit(std::make_unique<Step>(each, source, 5, false), {});
        ++accepted;
      } catch (InvalidArgument const&) {
        break;
      }
    }
  });
  if (chance() % 2 == 0) std::this_thread::yield();
  queue->close();
  submitter.join();
  for (std::size_t i = 0; i < accepted; ++i) expect(buffers[i].back() == 5, "a closed queue left work undone");
  if (last) expect(last->done(), "an event outlives its queue");
}

/// A copy that others may overwrite once it is complete.
class Move final : public CopyOperation {
 public:
  Move(Address dst, Address src, std::size_t size) : dst_(dst), src_(src), size_(size) {}

  CopyPath path() const noexcept override { return CopyPath::plain; }
  Reason reason() const noexcept override { return Reason::in_host; }
  Span written() const noexcept override { return {dst_, dst_ + size_}; }

 private:
  void submit_all(VendorQueue& queue) override { queue.copy(dst_, src_, size_); }

  Address const dst_, src_;
  std::size_t const size_;
};

/// Memory of the heap, some of which is refused, and some of which is not taken back at first.
class Heap final : public Pool::Source {
 public:
  Pool::Memory allocate(std::size_t device, std::uint64_t size) override {
    if (++calls_ % 5 == 0) throw VendorError({"allocate", 2, "full", ""});
    Buffer memory(size);
    Address const base = address(memory.data());
    std::lock_guard const guard(mutex_);
    memory_.try_emplace({device, base}, std::move(memory));
    return {base, base};
  }
  void free(std::size_t device, Address base, bool&) override {
    if (++calls_ % 3 == 0) throw VendorError({"free", 7, "refused", ""});
    std::lock_guard const guard(mutex_);
    expect(memory_.erase({device, base}) == 1, "a pool gave back what it did not have");
  }

  static std::size_t left() { return memory_.size(); }

 private:
  static inline std::mutex mutex_;
  static inline std::map<std::pair<std::size_t, Address>, Buffer> memory_;
  std::atomic<unsigned> calls_ = 0;
};

/// Allocate a block in the order of a queue, write it, read it and free it there, and see that nothing else wrote it.
void use_pool(Pool& pool, Queues const& queues, std::mt19937& chance) {
  auto const value = static_cast<unsigned char>(1 + chance() % 255);
  std::size_t const size = 256 * (1 + chance() % 16), device = chance() % 2;
  Queue& queue = *queues[chance() % queues.size()];
  Queue& other = *queues[chance() % queues.size()];  // frees
  Pool::Block* block = nullptr;
  Dependencies before;
  queue.add_history(before, {});
  throws<VendorError>([&] { block = pool.take(device, size, before); });
  if (block == nullptr) return;
  expect(block->size == size && before.covers(block->after), "a block was taken out of turn");
  if (chance() % 8 == 0) return pool.untake(device, block);
  Buffer const source(size, value);
  Buffer result(size);
  Event filled = queue.submit(std::make_unique<Move>(block->start, address(source.data()), size), {});
  Event read = queue.submit(std::make_unique<Move>(address(result.data()), block->start, size), {&filled});
  Event const freed = other.submit(std::make_unique<Move>(block->start, address(source.data()), 1), {&read});
  Pool::order(*block, freed);
  if (pool.free(device, block)) pool.free_excess();
  if (chance() % 8 == 0) throws<VendorError>([&] { pool.trim(4096); });
  read.wait();
  for (unsigned char const byte : result) expect(byte == value, "a block was used again before its turn");
  drain(queue);
  drain(other);
}

/// What may still be written, against a list of all ranges.
void writes_that_are_pending(unsigned seed) {
  struct Range {
    std::uint64_t position, start, end;
  };
  std::mt19937 chance(seed);
  for (int round = 0; round < 200; ++round) {
    pinning::Writes writes;
    std::vector<Range> all;
    std::uint64_t unknown = 0, reached = 0;
    for (std::uint64_t position = 1; position <= 40; ++position) {
      std::uint64_t const start = 1 + chance() % 64, size = 1 + chance() % (chance() % 2 == 0 ? 4 : 32);
      if (chance() % 16 == 0) {
        writes.add_unknown(unknown = position);
      } else {
        writes.add(position, start, size);
        all.push_back({position, start, start + size});
      }
      reached = std::max(reached, chance() % (position + 1));
      if (chance() % 4 == 0) writes.reach(reached);
      for (std::uint64_t at = 0; at < 100; ++at) {
        std::uint64_t const bytes = 1 + chance() % 8;
        bool const meets = unknown > reached || std::any_of(all.begin(), all.end(), [&](Range const& each) {
          return each.position > reached && each.start < at + bytes && at < each.end;
        });
        expect(writes.meet(reached, at, bytes) == meets, "what pending work writes is not known");
      }
    }
  }
}

/// What an event comes after stays short, however long the chain: pending work of two queues, and finished work of one
/// that is out of order.
void histories_stay_short(VendorDevice& device) {
  class Gate final : public Operation {
   public:
    explicit Gate(std::uint32_t const& word) : word_(word) {}
    void submit(VendorQueue& queue) override { queue.wait_value(address(&word_), 1); }
    Span written() const noexcept override { return {}; }

   private:
    std::uint32_t const& word_;
  };
  auto const length = [](Event const& event) {
    Dependencies history;
    event.add_history(history);
    return history.size();
  };
  auto const one = Queue::make(device, true), other = Queue::make(device, true), any = Queue::make(device, false);
  std::uint32_t open = 0;
  one->first().submit_uncaptured(std::make_unique<Gate>(open), {});
  Event event = one->record();
  for (int i = 0; i < 2000; ++i) {
    Queue& next = i % 2 == 0 ? *other : *one;
    next.wait({&event});
    event = next.record();
  }
  expect(!event.is_over() && length(event) == 2, "pending work has a long history");
  std::atomic_ref<std::uint32_t>{open}.store(1);
  event.wait();
  for (int i = 0; i < 1000; ++i) {
    any->wait({&event});
    event = any->record();
    event.wait();
  }
  expect(length(event) < 200, "finished work has a long history");
  for (Queue* each : {one.get(), other.get(), any.get()}) each->close();
}

/// Threads that use as much at once as a pool may reserve, of several devices: none is refused, because what is free, or
/// being given back by another thread, makes room.
void a_pool_that_is_full(std::chrono::duration<double> time) {
  class Slow final : public Pool::Source {
   public:
    Pool::Memory allocate(std::size_t, std::uint64_t) override {
      std::this_thread::yield();
      Address const base = next_ += 1 << 20;
      return {base, base};
    }
    void free(std::size_t, Address, bool&) override { std::this_thread::yield(); }

   private:
    std::atomic<Address> next_ = 1 << 20;
  };
  constexpr unsigned users = 3, devices = 2, unit = 256, most = 3;
  Pool pool(std::make_unique<Slow>(), devices, users * most * unit, Pool::unlimited);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < users; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937 chance(i);
      for (Trial const trial(time); trial.goes_on(true);) {
        std::size_t const device = chance() % devices;
        Pool::Block* const block = pool.take(device, unit * (1 + chance() % most), {});
        expect(block != nullptr, "a pool refused what it had room for");
        pool.free(device, block);
      }
    });
  }
  for (std::thread& each : threads) each.join();
  expect(pool.figures().reserved <= users * most * unit, "a pool is larger than its maximum");
  pool.close();
}

/// A source that neither gives nor takes any more ends each call, instead of being asked for ever.
void a_source_that_refuses_everything() {
  class Stubborn final : public Pool::Source {
   public:
    Pool::Memory allocate(std::size_t, std::uint64_t) override {
      if (given_++ != 0) throw VendorError({"allocate", 2, "full", ""});
      return {1 << 20, 1 << 20};
    }
    void free(std::size_t, Address, bool&) override { throw VendorError({"free", 7, "refused", ""}); }

   private:
    int given_ = 0;
  };
  for (std::uint64_t const most : {std::uint64_t{1024}, Pool::unlimited}) {
    Pool pool(std::make_unique<Stubborn>(), 1, most, Pool::unlimited);
    pool.free(0, pool.take(0, 512, {}));
    try {
      expect(pool.take(0, 1024, {}) == nullptr && most == 1024, "memory from nowhere");
    } catch (VendorError const&) {
      expect(most == Pool::unlimited, "refused by a source that was not to be asked");
    }
    expect(pool.figures().reserved == 512 && pool.figures().used == 0, "a pool counts wrong");
  }
}

}  // namespace

int main(int count, char** arguments) {
  double const seconds = count > 1 ? std::atof(arguments[1]) : 2;
  unsigned const seed = count > 2 ? static_cast<unsigned>(std::atoi(arguments[2])) : 1;
  VendorDevice& device = vendor_device("host:0");
  writes_that_are_pending(seed);
  a_source_that_refuses_everything();
  histories_stay_short(device);
  a_pool_that_is_full(std::chrono::duration<double>(seconds / 4));
  {
    Queues queues;
    for (bool const ordered : {true, false, true}) queues.push_back(Queue::make(device, ordered));
    auto const foreign = device.make_queue();
    auto const adopted = Lane::adopt(device, foreign->handle());
    expect(Lane::adopt(device, foreign->handle()) == adopted, "a stream has two lanes");
    queues.push_back(std::make_unique<Queue>(adopted));
    Pool pool(std::make_unique<Heap>(), 2, 64 << 10, 32 << 10);
    std::atomic<long> rounds = 0;
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        std::mt19937 chance(seed * 100 + i);
        for (Trial const trial{std::chrono::duration<double>(seconds)}; trial.goes_on(true); ++rounds) {
          pass_on(queues, chance);
          if (chance() % 8 == 0) close_beside(device, chance);
          for (int i = 0; i < 4; ++i) use_pool(pool, queues, chance);
        }
      });
    }
    for (std::thread& each : threads) each.join();
    expect(pool.figures().used == 0 && pool.figures().reserved <= 64 << 10, "a pool counts wrong");
    Pool::Left left{0, 1};
    while (left.pending != 0) throws<VendorError>([&] { left = pool.close(); });  // now and then
    expect(left.used == 0 && Heap::left() == 0, "a pool kept memory");
    expect(throws<Closed>([&] { pool.take(0, 256, {}); }), "a closed pool gave memory");
    for (auto const& queue : queues) queue->close();
    std::printf("all right: %ld rounds\n", rounds.load());
  }
  expect(alive == 0, "an operation was never destroyed");
}
