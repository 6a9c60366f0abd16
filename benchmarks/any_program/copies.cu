// SPDX-License-Identifier: Apache-2.0
// A program that knows nothing of pinning: plain cudaMemcpy of memory from malloc.
//
//     nvcc -O2 copies.cu -o copies [-cudart shared]
//     copies time        GB/s of copies of 1 GiB and 64 MiB, and of 4 KiB to 4 MiB in us, as "name value" lines
//     copies check SEED  threads and streams that copy and compare every byte
#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#define CHECK(call)                                                                                \
  do {                                                                                             \
    cudaError_t const error = (call);                                                              \
    if (error != cudaSuccess) {                                                                    \
      std::printf("%s:%d %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error));         \
      std::exit(1);                                                                                \
    }                                                                                              \
  } while (0)

namespace {

using Clock = std::chrono::steady_clock;

double seconds_of(auto&& function) {
  auto const began = Clock::now();
  function();
  return std::chrono::duration<double>(Clock::now() - began).count();
}

char* touched(std::size_t size) {
  auto* const memory = static_cast<char*>(std::malloc(size));
  for (std::size_t i = 0; i < size; i += 64) memory[i] = static_cast<char>(i);
  return memory;
}

void time_one(char const* name, std::size_t size, int turns, auto&& copy, bool in_us) {
  copy();
  double best = 1e9;
  for (int i = 0; i < turns; ++i) best = std::min(best, seconds_of(copy));
  std::printf("%s %.2f\n", name, in_us ? best * 1e6 : static_cast<double>(size) / best / 1e9);
}

void time_all() {
  std::size_t const gib = std::size_t{1} << 30, mib = 1 << 20;
  char* const host = touched(gib);
  void* device;
  CHECK(cudaMalloc(&device, gib));
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  time_one("1 GiB in", gib, 5, [&] { CHECK(cudaMemcpy(device, host, gib, cudaMemcpyHostToDevice)); CHECK(cudaDeviceSynchronize()); }, false);
  time_one("1 GiB out", gib, 5, [&] { CHECK(cudaMemcpy(host, device, gib, cudaMemcpyDeviceToHost)); }, false);
  time_one("1 GiB in, async", gib, 5, [&] {
    CHECK(cudaMemcpyAsync(device, host, gib, cudaMemcpyDefault, stream));
    CHECK(cudaStreamSynchronize(stream));
  }, false);
  time_one("1 GiB out, async", gib, 5, [&] {
    CHECK(cudaMemcpyAsync(host, device, gib, cudaMemcpyDefault, stream));
    CHECK(cudaStreamSynchronize(stream));
  }, false);
  time_one("1 GiB in, rows of 1 MiB", gib, 5, [&] {
    CHECK(cudaMemcpy2D(device, mib, host, mib, mib - 4096, 1024, cudaMemcpyHostToDevice));
    CHECK(cudaDeviceSynchronize());
  }, false);
  for (std::size_t size : {4 * mib, 8 * mib, 16 * mib, 64 * mib}) {
    char name[64];
    std::snprintf(name, sizeof name, "%zu MiB in", size / mib);
    time_one(name, size, 30, [&] { CHECK(cudaMemcpy(device, host, size, cudaMemcpyHostToDevice)); CHECK(cudaDeviceSynchronize()); }, false);
    std::snprintf(name, sizeof name, "%zu MiB out", size / mib);
    time_one(name, size, 30, [&] { CHECK(cudaMemcpy(host, device, size, cudaMemcpyDeviceToHost)); }, false);
  }
  for (std::size_t size : {std::size_t{4}, std::size_t{4096}, 64 * std::size_t{1024}, mib}) {
    char name[64];
    std::snprintf(name, sizeof name, "%zu B in, us", size);
    time_one(name, size, 2000, [&] { CHECK(cudaMemcpy(device, host, size, cudaMemcpyHostToDevice)); }, true);
    std::snprintf(name, sizeof name, "%zu B out, us", size);
    time_one(name, size, 2000, [&] { CHECK(cudaMemcpy(host, device, size, cudaMemcpyDeviceToHost)); }, true);
  }
}

std::uint64_t mixed(std::uint64_t value) { return (value ^ (value >> 29)) * 0x9E3779B97F4A7C15u; }

/// Copies of random sizes and offsets to the device, on the device and back, in a stream or the default one, from
/// memory that is overwritten at once.
void check(unsigned seed, std::atomic<std::uint64_t>* copied) {
  std::mt19937_64 random(seed);
  std::size_t const words = 6 << 20;  // 48 MiB
  std::vector<std::uint64_t> source(words), back(words);
  void *first, *second;
  CHECK(cudaMalloc(&first, words * 8));
  CHECK(cudaMalloc(&second, words * 8));
  cudaStream_t streams[3] = {};
  CHECK(cudaStreamCreate(&streams[1]));
  CHECK(cudaStreamCreateWithFlags(&streams[2], cudaStreamNonBlocking));
  for (int turn = 0; turn < 12; ++turn) {
    cudaStream_t const stream = streams[random() % 3];
    std::size_t const offset = random() % 5000, size = words * 8 - 5000 - random() % (random() % 4 == 0 ? words * 7 : 5000);
    bool const waits = random() % 2 == 0 && stream == nullptr;
    std::uint64_t const key = random();
    for (std::size_t i = 0; i < words; ++i) source[i] = mixed(i + key);
    char* const from = reinterpret_cast<char*>(source.data()) + offset;
    char* const to = reinterpret_cast<char*>(back.data()) + offset;
    std::memset(back.data(), 1, words * 8);
    if (waits) CHECK(cudaMemcpy(first, from, size, cudaMemcpyHostToDevice));
    else CHECK(cudaMemcpyAsync(first, from, size, cudaMemcpyHostToDevice, stream));
    std::memset(source.data(), 2, words * 8);  // pageable memory has been read when the call returns
    CHECK(cudaMemcpyAsync(second, first, size, cudaMemcpyDeviceToDevice, stream));
    if (waits) CHECK(cudaMemcpy(to, second, size, cudaMemcpyDeviceToHost));
    else CHECK(cudaMemcpyAsync(to, second, size, cudaMemcpyDeviceToHost, stream));
    for (std::size_t i = 0; i < words; ++i) source[i] = mixed(i + key);
    if (std::memcmp(from, to, size) != 0) {
      std::printf("different bytes: seed %u turn %d size %zu\n", seed, turn, size);
      std::exit(1);
    }
    *copied += 2 * size;
  }
  CHECK(cudaFree(first));
  CHECK(cudaFree(second));
  for (int i = 1; i < 3; ++i) CHECK(cudaStreamDestroy(streams[i]));
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 2 && std::strcmp(arguments[1], "time") == 0) return time_all(), 0;
  if (count < 3) return 2;
  unsigned const seed = static_cast<unsigned>(std::atoi(arguments[2]));
  std::atomic<std::uint64_t> copied = 0;
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 6; ++i) threads.emplace_back(check, seed * 100 + i, &copied);
  for (auto& thread : threads) thread.join();
  CHECK(cudaDeviceReset());  // and once more in a new context, whose handle may be the same
  check(seed, &copied);
  std::printf("%.1f GB, every byte right\n", static_cast<double>(copied) / 1e9);
}
