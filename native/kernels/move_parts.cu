// SPDX-License-Identifier: Apache-2.0
// Many small copies at once: each warp takes a part, a range of at most a few KiB, and then the next one that is nobody's.
// One end lies in locked memory of the host, so what counts is how many bytes are on their way over the bus: four loads
// of 16 bytes are in flight for each lane, 2 KiB a warp. Streaming loads and stores: nothing here is read twice.
//
// Compiled by generate.py to the PTX in move_parts_ptx.hpp, which the driver compiles for the GPU at hand.

using Address = unsigned long long;

struct Part {
  Address dst, src;
  Address size;  // bytes
};

namespace {

constexpr unsigned lanes = 32;

template <class Word>
__device__ __forceinline__ void move_words(Word* dst, Word const* src, Address count, unsigned lane) {
  Address i = lane;
  for (; i + 3 * lanes < count; i += 4 * lanes) {
    Word const a = __ldcs(src + i), b = __ldcs(src + i + lanes);
    Word const c = __ldcs(src + i + 2 * lanes), d = __ldcs(src + i + 3 * lanes);
    __stcs(dst + i, a);
    __stcs(dst + i + lanes, b);
    __stcs(dst + i + 2 * lanes, c);
    __stcs(dst + i + 3 * lanes, d);
  }
  for (; i < count; i += lanes) __stcs(dst + i, __ldcs(src + i));
}

/// Bytes up to the first address at which both ends are aligned to Word, words from there, and the bytes that are left.
template <class Word>
__device__ __forceinline__ void move_part(Part const& part, unsigned lane) {
  Address const before = (sizeof(Word) - part.dst % sizeof(Word)) % sizeof(Word);
  Address const head = before < part.size ? before : part.size;
  Address const words = (part.size - head) / sizeof(Word);
  Address const moved = head + words * sizeof(Word);
  auto* const dst = reinterpret_cast<unsigned char*>(part.dst);
  auto const* const src = reinterpret_cast<unsigned char const*>(part.src);
  if (lane < head) dst[lane] = src[lane];
  move_words(reinterpret_cast<Word*>(dst + head), reinterpret_cast<Word const*>(src + head), words, lane);
  if (moved + lane < part.size) dst[moved + lane] = src[moved + lane];
}

}  // namespace

extern "C" __global__ void __launch_bounds__(1024) move_parts(Part const* parts, Address count) {
  unsigned const lane = threadIdx.x % lanes;
  Address const warps = Address{gridDim.x} * (blockDim.x / lanes);
  for (Address i = blockIdx.x + Address{gridDim.x} * (threadIdx.x / lanes); i < count; i += warps) {
    Part const part = parts[i];
    Address const apart = part.dst ^ part.src;
    if (apart % 16 == 0) {
      move_part<uint4>(part, lane);
    } else if (apart % 8 == 0) {
      move_part<uint2>(part, lane);
    } else if (apart % 4 == 0) {
      move_part<unsigned>(part, lane);
    } else {
      move_part<unsigned char>(part, lane);
    }
  }
}
