// SPDX-License-Identifier: Apache-2.0
// Many small copies at once: the warps share a list of parts, ranges of at most a few KiB, in a fixed pattern. One end
// of each part is in locked host memory, so speed depends on how many bytes are in flight over the bus, in how few
// requests: all loads and stores are of 16 aligned bytes, and each lane has four in flight, 2 KiB per warp. If the ends
// of a part are misaligned to each other, each word to be stored is combined from two loaded words, the second of which
// is in the next lane. Loads and stores are streaming: no data are read twice.
//
// From compute capability 9.0 on, parts at multiples of 128 bytes go by bulk copies through shared memory instead: one
// lane of a warp issues them, and 3 multiprocessors suffice where loads and stores need 8. If the host's end begins
// inside a line, a bulk copy requests each line twice over the bus: 24 GB/s instead of 51 (H200).
//
// Compiled by generate.py to move_parts_70.ptx and move_parts_90.ptx, one of which the driver compiles for the GPU
// present; and for the CPU by tests/native/move_parts.cpp.

using Address = unsigned long long;

struct Part {
  Address dst, src;
  Address size;  // bytes
};

namespace {

using Word = uint4;
constexpr unsigned lanes = 32, rows = 4, word = sizeof(Word), line = 128 / word, all = 0xffffffff;

__device__ __forceinline__ Address of_lane(Address value, unsigned lane) {
  unsigned const low = __shfl_sync(all, static_cast<unsigned>(value), lane);
  unsigned const high = __shfl_sync(all, static_cast<unsigned>(value >> 32), lane);
  return Address{high} << 32 | low;
}

__device__ __forceinline__ Word of_lane(Word value, unsigned lane) {
  return {__shfl_sync(all, value.x, lane), __shfl_sync(all, value.y, lane),
          __shfl_sync(all, value.z, lane), __shfl_sync(all, value.w, lane)};
}

/// The 16 bytes that begin `shift` bytes (1 to 15) into two consecutive words.
__device__ __forceinline__ Word joined(Word first, Word second, unsigned shift) {
  unsigned a = first.x, b = first.y, c = first.z, d = first.w, e = second.x;
  if (shift & 8) a = c, b = d, c = second.x, d = second.y, e = second.z;
  if (shift & 4) a = b, b = c, c = d, d = e, e = shift & 8 ? second.w : second.y;
  unsigned const bits = shift % 4 * 8;
  return {__funnelshift_r(a, b, bits), __funnelshift_r(b, c, bits), __funnelshift_r(c, d, bits),
          __funnelshift_r(d, e, bits)};
}

/// Moves `count` words to `dst` from `shift` bytes after `src`; both pointers are aligned. The lanes begin at a line of
/// 128 bytes, so that they request whole lines.
template <bool apart>
__device__ __forceinline__ void move_words(Word* dst, Word const* src, unsigned shift, long long count, unsigned lane) {
  long long const loaded = count + apart;  // words
  auto const offset = static_cast<long long>(reinterpret_cast<Address>(src) / word % line);
  for (long long first = -offset; first < count; first += rows * lanes) {
    Word words[rows + 1];
    long long const mine = first + lane;
    for (unsigned row = 0; row < rows; ++row) {
      long long const i = mine + row * lanes;
      if (i >= 0 && i < loaded) words[row] = __ldcs(src + i);
    }
    if (apart && lane == 0 && mine + rows * lanes < loaded) words[rows] = __ldcs(src + mine + rows * lanes);
    for (unsigned row = 0; row < rows; ++row) {
      long long const i = mine + row * lanes;
      Word moved = words[row];
      if (apart) {
        // The last lane needs the first lane's word of the next row.
        Word const next = of_lane(lane == 0 ? words[row + 1] : moved, (lane + 1) % lanes);
        moved = joined(moved, next, shift);
      }
      if (i >= 0 && i < count) __stcs(dst + i, moved);
    }
  }
}

/// Moves bytes up to the first word of the destination, then words, then the remaining bytes. The source is read in
/// whole words: also bytes outside the part that share an aligned word with it.
__device__ __forceinline__ void move_part(Part const& part, unsigned lane) {
  Address const before = (word - part.dst % word) % word;
  Address const head = before < part.size ? before : part.size;
  Address const count = (part.size - head) / word;
  Address const moved = head + count * word;
  auto* const dst = reinterpret_cast<unsigned char*>(part.dst);
  auto const* const src = reinterpret_cast<unsigned char const*>(part.src);
  unsigned char first = 0, last = 0;
  if (lane < head) first = __ldcs(src + lane);
  if (moved + lane < part.size) last = __ldcs(src + moved + lane);
  unsigned const shift = (part.src + head) % word;
  auto* const to = reinterpret_cast<Word*>(dst + head);
  auto const* const from = reinterpret_cast<Word const*>(src + head - shift);
  if (count > 0 && shift == 0) move_words<false>(to, from, 0, count, lane);
  if (count > 0 && shift != 0) move_words<true>(to, from, shift, count, lane);
  if (lane < head) __stcs(dst + lane, first);
  if (moved + lane < part.size) __stcs(dst + moved + lane, last);
}

/// Calls `move(part)` for each part of this warp. A warp takes a few consecutive parts of the list at a time, which is
/// in host memory too, so that its lanes read one each at once.
template <class Move>
__device__ __forceinline__ void for_each_part(Part const* parts, Address count, Move&& move) {
  unsigned const lane = threadIdx.x % lanes;
  Address const movers = Address{gridDim.x} * (blockDim.x / lanes);
  Address const even = count / movers;
  Address const most = even < 1 ? 1 : even < lanes ? even : lanes;
  for (Address first = (blockIdx.x + Address{gridDim.x} * (threadIdx.x / lanes)) * most; first < count;
       first += movers * most) {
    unsigned const here = static_cast<unsigned>(count - first < most ? count - first : most);
    Part mine{};
    if (lane < here) mine = parts[first + lane];
    for (unsigned i = 0; i < here; ++i) {
      move(Part{of_lane(mine.dst, i), of_lane(mine.src, i), of_lane(mine.size, i)});
    }
  }
}

}  // namespace

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ < 900

extern "C" __global__ void __launch_bounds__(1024) move_parts(Part const* parts, Address count) {
  for_each_part(parts, count, [](Part const& part) { move_part(part, threadIdx.x % lanes); });
}

#endif
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

namespace {

#ifdef __CUDA_ARCH__
__device__ __forceinline__ unsigned in_shared(void const* ptr) {
  return static_cast<unsigned>(__cvta_generic_to_shared(ptr));
}

/// A barrier that completes once per load.
__device__ __forceinline__ void init_barrier(Address* barrier) {
  asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(in_shared(barrier)) : "memory");
}

__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void begin_load(void* stage, Address src, unsigned size, Address* barrier) {
  unsigned const to = in_shared(stage), loaded = in_shared(barrier);
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(loaded), "r"(size) : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(src), "r"(size), "r"(loaded)
               : "memory");
}

__device__ __forceinline__ void wait_loaded(Address* barrier, unsigned parity) {
  unsigned passed = 0;
  while (!passed) {
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(passed)
                 : "r"(in_shared(barrier)), "r"(parity)
                 : "memory");
  }
}

__device__ __forceinline__ void begin_store(Address dst, void const* stage, unsigned size) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst), "r"(in_shared(stage)), "r"(size)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/// Waits until all stores but the last `pending` have read their stages.
template <int pending>
__device__ __forceinline__ void wait_stages_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

__device__ __forceinline__ void wait_stored() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
#endif

// `ahead` stages of a warp are being loaded, and the others stored. On an H200 more warps, or pieces of other sizes,
// gain nothing.
constexpr unsigned stages = 6, ahead = 4, piece_bytes = 4096, bulk_warps = 8;

/// Moves pieces of aligned parts in the order in which they are begun. Used by one lane of a warp.
struct alignas(128) BulkMover {
  unsigned char bytes[stages][piece_bytes];
  Address dst[stages];
  Address barriers[stages];
  unsigned sizes[stages];

  __device__ __forceinline__ void init() {
    for (Address& barrier : barriers) init_barrier(&barrier);
    publish_barriers();
  }

  /// Begins the piece with this number. Its stage is free once all but the last `stages - ahead` stores have read.
  __device__ __forceinline__ void begin(unsigned number, Address to, Address from, unsigned size) {
    if (number >= ahead) pass_on(number - ahead);
    wait_stages_read<stages - ahead>();
    unsigned const stage = number % stages;
    dst[stage] = to;
    sizes[stage] = size;
    begin_load(bytes[stage], from, size, &barriers[stage]);
  }

  __device__ __forceinline__ void pass_on(unsigned number) {
    unsigned const stage = number % stages;
    wait_loaded(&barriers[stage], number / stages % 2);
    begin_store(dst[stage], bytes[stage], sizes[stage]);
  }

  __device__ __forceinline__ void finish(unsigned count) {
    for (unsigned number = count < ahead ? 0 : count - ahead; number < count; ++number) pass_on(number);
    wait_stored();
  }
};

}  // namespace

extern __shared__ BulkMover movers[];  // one for each warp: 197 632 bytes, as in cuda_batch.cpp
static_assert(bulk_warps * sizeof(BulkMover) == 197632);

extern "C" __global__ void __launch_bounds__(bulk_warps* lanes) move_parts_in_bulk(Part const* parts, Address count) {
  BulkMover& mover = movers[threadIdx.x / lanes];
  unsigned const lane = threadIdx.x % lanes;
  unsigned begun = 0;  // pieces
  if (lane == 0) mover.init();
  for_each_part(parts, count, [&](Part const& part) {
    for (Address at = 0; lane == 0 && at < part.size; at += piece_bytes, ++begun) {
      unsigned const size = part.size - at < piece_bytes ? static_cast<unsigned>(part.size - at) : piece_bytes;
      mover.begin(begun, part.dst + at, part.src + at, size);
    }
  });
  if (lane == 0) mover.finish(begun);
}

#endif
