// SPDX-License-Identifier: Apache-2.0
// Where the blocks of chunks lie in a ring, for random sizes, against a list of all of them: ring_model [SECONDS] [SEED].
#include <cstdint>
#include <cstdlib>
#include <random>
#include <vector>

#include "../../native/copies/ring.hpp"
#include "expect.hpp"

using pinning::Chunk;
using pinning::Placement;

namespace {

struct Placed {
  std::uint64_t start, end;
  std::uint32_t number;
};

class Model {
 public:
  explicit Model(std::uint64_t seed) : random_(seed), whole_(pages(1, 64)), memory_(whole_), ring_(memory_.data(), whole_) {}

  /// Use the ring while it is not idle.
  void use() {
    std::uint64_t const size = pages(1, whole_ / page);
    bool const rewinds = any(2) == 0;
    ring_.renew(size, number_);
    if (rewinds) ring_.rewind();
    if (rewinds || last_end_ >= size) last_end_ = 0;
    expect(ring_.size() == size, "a ring of another size");
    std::vector<Placed> placed;
    std::uint32_t const first = number_;
    std::uint64_t bytes = 0, largest = 0;  // of whole pages
    for (std::uint64_t count = any(40); count > 0; --count) {
      Chunk chunk{0, 1 + any(std::max(size / (1 + any(8)), std::uint64_t{1})), nullptr, 0, false, 0};
      if (any(3) > 0) chunk.size = std::min((chunk.size + page - 1) / page * page, size);
      ring_.place(chunk, number_);
      auto const start = static_cast<std::uint64_t>(chunk.block - memory_.data()), end = start + chunk.size;
      expect(chunk.block >= memory_.data() && end <= size, "a block outside the ring");
      expect(first <= chunk.needs && chunk.needs <= number_, "a chunk that waits for itself, or for what is long over");
      for (Placed const& each : placed) {
        bool const overlaps = each.start < end && start < each.end;
        expect(!overlaps || each.number < chunk.needs, "a block that is used again before it is free");
      }
      expect(start == (last_end_ + chunk.size <= size ? last_end_ : 0), "a block that does not lie behind the last one");
      last_end_ = (end + page - 1) / page * page;
      bytes += last_end_ - start;
      largest = std::max(largest, last_end_ - start);
      expect(bytes + largest > size || chunk.needs == first, "a chunk that waits although there is room");
      placed.push_back({start, end, number_++});
    }
  }

 private:
  static constexpr std::uint64_t page = 4096;

  std::uint64_t any(std::uint64_t below) { return random_() % below; }
  std::uint64_t pages(std::uint64_t from, std::uint64_t to) { return page * (from + any(to - from + 1)); }

  std::mt19937_64 random_;
  std::uint64_t const whole_;
  std::vector<char> memory_;
  Placement ring_;
  std::uint32_t number_ = 0;
  std::uint64_t last_end_ = 0;
};

}  // namespace

int main(int count, char** arguments) {
  double const seconds = count > 1 ? std::atof(arguments[1]) : 1;
  std::uint64_t seed = count > 2 ? std::strtoull(arguments[2], nullptr, 0) : 1, rings = 0;
  for (Trial trial{std::chrono::duration<double>(seconds)}; trial.goes_on(rings > 0); ++rings) {
    Model model(seed++);
    for (int i = 0; i < 50; ++i) model.use();
  }
  std::printf("%llu rings: all right\n", static_cast<unsigned long long>(rings));
}
