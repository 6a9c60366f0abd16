// SPDX-License-Identifier: Apache-2.0
// The kernel that moves parts, on the CPU: the lanes of a warp are coroutines, which meet at a shuffle. All alignments
// of source and destination, sizes around all thresholds of the kernel, and guard bytes around the destination.
//
//     move_parts SECONDS SEED
#undef _FORTIFY_SOURCE  // it makes longjmp refuse to change stacks, and some distributions define it for all programs
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "expect.hpp"

namespace {

constexpr unsigned warp = 32;

/// The lanes of one warp, each on its own stack; a lane that reaches a shuffle yields to the next one.
class Warp {
 public:
  Warp() {
    for (auto& stack : stacks_) stack = std::make_unique<char[]>(stack_bytes);
  }

  void run(void (*body)()) {
    body_ = body;
    only = this;
    for (lane_ = 0; lane_ < warp; ++lane_) {
      if (_setjmp(caller_) == 0) start();
    }
    while (!std::ranges::all_of(over_, std::identity{})) {
      for (lane_ = 0; lane_ < warp; ++lane_) {
        if (!over_[lane_] && _setjmp(caller_) == 0) _longjmp(lanes_[lane_], 1);
      }
    }
  }

  unsigned shuffle(unsigned value, unsigned from) {
    unsigned const turn = turns_[lane_]++ % 2, lane = lane_;
    values_[turn][lane] = value;
    if (_setjmp(lanes_[lane]) == 0) _longjmp(caller_, 1);
    if (turns_[from] != turns_[lane] && turns_[from] != turns_[lane] + 1) fail("lanes do not shuffle together");
    return values_[turn][from];
  }

  unsigned lane() const { return lane_; }
  static Warp* only;

 private:
  static constexpr std::size_t stack_bytes = 64 << 10;

  void start() {
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = stacks_[lane_].get();
    context.uc_stack.ss_size = stack_bytes;
    context.uc_link = nullptr;
    over_[lane_] = false;
    turns_[lane_] = 0;
    makecontext(&context, [] { only->live(); }, 0);
    setcontext(&context);
  }
  void live() {
    body_();
    over_[lane_] = true;
    _longjmp(caller_, 1);
  }

  void (*body_)() = nullptr;
  unsigned lane_ = 0;
  jmp_buf caller_, lanes_[warp];
  bool over_[warp];
  unsigned turns_[warp];
  unsigned values_[2][warp];
  std::unique_ptr<char[]> stacks_[warp];
};
Warp* Warp::only = nullptr;

// The parts of CUDA that the kernel uses.
struct Index {
  unsigned x;
};
Index blockIdx{0}, gridDim{1}, blockDim{warp};
struct {
  struct {
    operator unsigned() const { return first + Warp::only->lane(); }
    unsigned first = 0;
  } x;
} threadIdx;

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

unsigned __shfl_sync(unsigned, unsigned value, unsigned from) { return Warp::only->shuffle(value, from); }

unsigned __funnelshift_r(unsigned low, unsigned high, unsigned bits) {
  return static_cast<unsigned>(((std::uint64_t{high} << 32 | low) >> (bits % 32)));
}

// The range that one move may read: every aligned block of 16 bytes that contains a byte of the source.
std::uintptr_t readable, readable_end;

template <class Word>
Word __ldcs(Word const* from) {
  auto const at = reinterpret_cast<std::uintptr_t>(from);
  if (at % sizeof(Word) != 0) fail("a load is not aligned");
  if (at < readable || at + sizeof(Word) > readable_end) fail("it reads beyond the source");
  return *from;
}

template <class Word>
void __stcs(Word* to, Word const& value) {
  if (reinterpret_cast<std::uintptr_t>(to) % sizeof(Word) != 0) fail("a store is not aligned");
  *to = value;
}

}  // namespace

// Bulk copies are executed as late as allowed: a load when it is waited for, a store when a wait requires it.
namespace {

void align(std::uintptr_t dst, std::uintptr_t src, unsigned size) {
  if (size == 0 || (dst | src | size) % 16 != 0) fail("a bulk copy is not aligned");
}

struct Load {
  void* stage;
  void const* src;
  unsigned size;
};
std::map<void*, std::pair<std::optional<Load>, unsigned>> barriers;  // and how often each was passed
std::deque<std::pair<void*, std::pair<void const*, unsigned>>> stores;

void init_barrier(void* barrier) { barriers[barrier] = {}; }
void publish_barriers() {}

void begin_load(void* stage, std::uint64_t src, unsigned size, void* barrier) {
  align(reinterpret_cast<std::uintptr_t>(stage), src, size);
  if (src < readable || src + size > readable_end) fail("it reads beyond the source");
  if (barriers.at(barrier).first) fail("a stage is loaded twice");
  barriers[barrier].first = {stage, reinterpret_cast<void const*>(src), size};
}

void wait_loaded(void* barrier, unsigned parity) {
  auto& [load, passed] = barriers.at(barrier);
  if (!load || passed++ % 2 != parity) fail("a wait that would not end, or end at once");
  std::memcpy(load->stage, load->src, load->size);
  load.reset();
}

void begin_store(std::uint64_t dst, void const* stage, unsigned size) {
  align(dst, reinterpret_cast<std::uintptr_t>(stage), size);
  stores.push_back({reinterpret_cast<void*>(dst), {stage, size}});
}

void store_all_but(std::size_t pending) {
  for (; stores.size() > pending; stores.pop_front()) {
    std::memcpy(stores[0].first, stores[0].second.first, stores[0].second.second);
  }
}
template <int pending>
void wait_stages_read() {
  store_all_but(pending);
}
void wait_stored() { store_all_but(0); }

}  // namespace

#define __shared__
#define __device__
#define __forceinline__ inline
#define __global__
#define __launch_bounds__(threads)
#include "../../native/vendors/cuda/kernels/move_parts.cu"
#undef __device__
#undef __forceinline__
#undef __shared__

BulkMover movers[bulk_warps];

namespace {

bool in_bulk = false;

constexpr std::size_t guard = 64, most = 40 << 10;

std::vector<Part> parts;

/// Execute a launch one warp at a time: the kernel's warps share nothing.
void launch(unsigned blocks, unsigned threads) {
  static Warp lanes;
  gridDim.x = blocks;
  blockDim.x = threads;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
    for (threadIdx.x.first = 0; threadIdx.x.first < threads; threadIdx.x.first += warp) {
      lanes.run([] { (in_bulk ? move_parts_in_bulk : move_parts)(parts.data(), parts.size()); });
      if (!stores.empty()) fail("a warp ends before its stores");
    }
  }
}

struct Memory {
  explicit Memory(std::mt19937_64& draw) {
    for (auto* const bytes : {src, dst}) {
      for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<unsigned char>(draw());
    }
  }
  static constexpr std::size_t size = most + 2 * guard + 64;
  alignas(128) unsigned char src[size];
  alignas(128) unsigned char dst[size];
};

void one(Memory& memory, unsigned dst_at, unsigned src_at, std::size_t size) {
  static unsigned char expected[Memory::size];
  std::memcpy(expected, memory.dst, sizeof expected);
  std::memcpy(expected + guard + dst_at, memory.src + guard + src_at, size);
  auto const src = reinterpret_cast<std::uintptr_t>(memory.src) + guard + src_at;
  readable = src & ~std::uintptr_t{15};
  readable_end = (src + size + 15) & ~std::uintptr_t{15};
  parts = {{reinterpret_cast<Address>(memory.dst) + guard + dst_at, src, size}};
  launch(1, warp);
  if (std::memcmp(expected, memory.dst, sizeof expected) != 0) {
    std::printf("dst + %u, src + %u, %zu bytes: ", dst_at, src_at, size);
    fail("other bytes than memcpy's");
  }
}

/// Move many parts with several warps.
void many(Memory& memory, std::mt19937_64& draw, unsigned blocks, unsigned threads, std::size_t count) {
  static unsigned char expected[Memory::size];
  std::memcpy(expected, memory.dst, sizeof expected);
  readable = reinterpret_cast<std::uintptr_t>(memory.src), readable_end = readable + Memory::size;
  parts.clear();
  std::size_t at = 0;
  for (std::size_t i = 0; i < count && at < most; ++i) {
    bool const aligned = in_bulk || (at % 16 == 0 && draw() % 4 != 0);
    std::size_t size = aligned ? 16 * (1 + draw() % (draw() % 8 == 0 ? 800 : 12)) : 1 + draw() % 200;
    size = std::min(size, most - at);
    std::size_t const from = draw() % (most - size) & (aligned ? ~std::size_t{15} : ~std::size_t{0});
    parts.push_back({reinterpret_cast<Address>(memory.dst) + at, reinterpret_cast<Address>(memory.src) + from, size});
    std::memcpy(expected + at, memory.src + from, size);
    at += size;
  }
  launch(blocks, threads);
  if (std::memcmp(expected, memory.dst, sizeof expected) != 0) fail("other bytes than memcpy's, of many parts");
}

}  // namespace

int main(int, char** arguments) {
  auto const end = std::chrono::steady_clock::now() + std::chrono::duration<double>(std::atof(arguments[1]));
  std::mt19937_64 draw(std::strtoull(arguments[2], nullptr, 10));
  auto const memory = std::make_unique<Memory>(draw);
  unsigned long moved = 0;
  for (unsigned dst = 0; dst < 32; ++dst) {
    for (unsigned src = 0; src < 32; ++src) {
      for (std::size_t const size : {std::size_t{1 + draw() % 64}, std::size_t{1 + draw() % 600},
                                     std::size_t{1024 + draw() % 100}, std::size_t{2000 + draw() % 100}}) {
        one(*memory, dst, src, size), ++moved;
      }
    }
  }
  for (std::size_t size = 1; size < 80; ++size) {
    for (unsigned dst = 0; dst < 16; dst += 3) {
      for (unsigned src = 0; src < 16; src += 2) one(*memory, dst, src, size), ++moved;
    }
  }
  for (bool const bulk : {false, true}) {
    in_bulk = bulk;
    for (std::size_t const count : {1, 2, 31, 32, 33, 63, 64, 65, 100, 300}) {
      many(*memory, draw, 1, 2 * warp, count), many(*memory, draw, 2, warp, count), many(*memory, draw, 1, warp, count);
      moved += 3;
    }
  }
  do {
    in_bulk = !in_bulk;
    if (!in_bulk) one(*memory, draw() % 64, draw() % 64, 1 + draw() % most), ++moved;
    one(*memory, 16 * (draw() % 4), 16 * (draw() % 4), 16 * (1 + draw() % (most / 16))), ++moved;
    many(*memory, draw, 1 + draw() % 3, warp * (1 + draw() % bulk_warps), 1 + draw() % 300), ++moved;
  } while (std::chrono::steady_clock::now() < end);
  std::printf("all right: %lu moves\n", moved);
}
