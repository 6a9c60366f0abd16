// SPDX-License-Identifier: Apache-2.0
// Shared by the concurrent tests: scenes of regions that are inserted and removed, and a reader that checks every
// answer against what the writer had done by then.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include <pagetable/page_table.hpp>

namespace churn {

using pagetable::Address;
using pagetable::Region;

/// splitmix64: the same numbers for the same seed, everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t operator()() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  std::uint64_t below(std::uint64_t bound) { return (*this)() % bound; }

 private:
  std::uint64_t state_;
};

struct Range {
  Address start;
  std::uint64_t size;
  Address last() const { return start + (size - 1); }
  bool contains(Address address) const { return address - start < size; }
  bool overlaps(Range other) const { return start <= other.last() && other.start <= last(); }
};

using Slots = std::uint64_t;  // a set of a scene's slots, as bits

/// Steady regions, which are never removed, and slots: ranges that a writer inserts and removes. Slots that overlap
/// have the same writer and are never present together; readers look up the probes.
struct Scene {
  struct Probe {
    Address address;
    Slots covering;
    int writer;  // that owns those slots
    int steady;  // index of the steady region there, or -1
  };

  std::string name;
  std::vector<Range> steady;
  std::vector<Range> slots;
  std::vector<Slots> conflicts;  // of each slot, itself included
  std::array<Slots, 2> owned = {};
  std::vector<Probe> probes;

  Scene(std::string name, std::vector<Range> steady, std::vector<Range> slots, std::uint64_t cell, int writers = 2)
      : name(std::move(name)), steady(std::move(steady)), slots(std::move(slots)) {
    share_out(writers);
    place_probes(cell);
  }

 private:
  void share_out(int writers) {
    std::vector<int> writer(slots.size(), -1);
    int next = 0;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      Slots mask = 0;
      for (std::size_t j = 0; j < slots.size(); ++j) mask |= Slots{slots[i].overlaps(slots[j])} << j;
      conflicts.push_back(mask);
    }
    for (std::size_t i = 0; i < slots.size(); ++i) {
      Slots group = Slots{1} << i;
      for (Slots grown = 0; grown != group;) {
        grown = group;
        for (std::size_t j = 0; j < slots.size(); ++j) {
          if (group >> j & 1) group |= conflicts[j];
        }
      }
      if (writer[i] < 0) {
        for (std::size_t j = 0; j < slots.size(); ++j) {
          if (group >> j & 1) writer[j] = next % writers;
        }
        ++next;
      }
      owned[writer[i]] |= Slots{1} << i;
    }
  }

  /// Place probes on both sides of each range's borders and of the first four cell borders in it, and in its middle.
  void place_probes(std::uint64_t cell) {
    std::vector<Address> addresses;
    auto const around = [&](Address border) {
      addresses.push_back(border - 1);
      addresses.push_back(border);
    };
    for (auto const* ranges : {&steady, &slots}) {
      for (Range range : *ranges) {
        around(range.start);
        around(range.start + range.size);
        addresses.push_back(range.start + range.size / 2);
        Address border = (range.start | (cell - 1)) + 1;
        for (int i = 0; i < 4 && range.contains(border); ++i, border += cell) around(border);
      }
    }
    std::sort(addresses.begin(), addresses.end());
    addresses.erase(std::unique(addresses.begin(), addresses.end()), addresses.end());
    for (Address address : addresses) {
      Probe probe{address, 0, 0, -1};
      for (std::size_t i = 0; i < slots.size(); ++i) probe.covering |= Slots{slots[i].contains(address)} << i;
      for (std::size_t i = 0; i < steady.size(); ++i) {
        if (steady[i].contains(address)) probe.steady = static_cast<int>(i);
      }
      probe.writer = (probe.covering & owned[1]) != 0;
      probes.push_back(probe);
    }
  }
};

/// Scenes for every cell size: a cell that many regions share; cells that ranges of their own size fill and straddle;
/// cells that a region spans; and tiles of this size. `base` is a multiple of 1 GiB with at least 64 GiB above it.
inline std::vector<Scene> scenes(Address base) {
  std::vector<Scene> all;
  for (unsigned bits : {30, 21, 12, 8, 4}) {
    std::uint64_t const cell = std::uint64_t{1} << bits, piece = cell / 16;
    std::string const name = bits == 30 ? "1 GiB" : bits == 21 ? "2 MiB" : bits == 12 ? "4 KiB" : bits == 8 ? "256 B" : "16 B";

    // From none to fourteen regions in a cell and back; then one of them is steady, and two more are in adjacent cells.
    std::vector<Range> crowd;
    for (int i = 0; i < 14; ++i) crowd.push_back({base + (i + 1) * piece, piece > 1 ? piece - i % 2 * (piece / 2) : 1});
    all.emplace_back(name + " crowd", std::vector<Range>{}, crowd, cell);
    crowd.erase(crowd.begin() + 5);
    crowd.push_back({base + cell, piece});
    crowd.push_back({base - piece, 2 * piece});
    all.emplace_back(name + " crowd around a steady one", std::vector<Range>{{base + 6 * piece, piece}}, crowd, cell);

    // Regions of one cell's size, aligned or not, and halves; the steady ones keep the cell above split.
    std::vector<Range> beside;
    if (bits < 30) {
      for (int i = 0; i < 8; ++i) beside.push_back({base + (6 + i) * cell, cell - i % 2});
    }
    all.emplace_back(name + " filled",
                     beside,
                     std::vector<Range>{{base, cell},
                                        {base, 2 * cell},
                                        {base, cell / 2},
                                        {base + cell / 2, cell / 2},
                                        {base + cell / 2, cell},
                                        {base + cell, cell},
                                        {base + 3 * cell / 2, piece},
                                        {base + 3 * cell / 2 + 2 * piece, cell},
                                        {base + 3 * cell, cell},
                                        {base + 3 * cell, cell - 1}},
                     cell);

    // Regions that span cells whose ends are shared with others.
    all.emplace_back(name + " spanned",
                     std::vector<Range>{{base + 3 * piece, piece}, {base + 4 * cell + 12 * piece, piece}},
                     std::vector<Range>{{base + 5 * piece, 4 * cell},
                                        {base + cell, 3 * cell},
                                        {base + 2 * cell, piece},
                                        {base, piece},
                                        {base + 4 * cell + 14 * piece, 2 * cell},
                                        {base + 4 * cell + 13 * piece, piece},
                                        {base + 7 * cell, 3 * cell},
                                        {base + 8 * cell, cell}},
                     cell);

    // Cell-sized regions in three cells, each at least 16 times as large, that empties before the next fills: a node
    // below passes from one to the other, and a region is inserted as the only one there and removed as one of many.
    if (bits == 30) continue;
    std::uint64_t const above = bits > 8 ? 512 * cell : 16 * cell;
    std::vector<Range> tiles;
    for (int i = 0; i < 30; ++i) tiles.push_back({base + i / 10 * 5 * above + i % 10 * cell, cell});
    all.emplace_back(name + " tiled", std::vector<Range>{}, tiles, cell, 1);
  }
  return all;
}

struct Op {
  int slot;
  bool insert;
};

/// The endless list of one writer's operations, which readers replay. In each spell it fills some of the writer's
/// slots, empties some, or lets a window of occupied slots slide through all of them in order.
class Script {
 public:
  Script(Scene const& scene, int writer, std::uint64_t seed) : scene_(&scene), random_(seed + writer) {
    for (std::size_t i = 0; i < scene.slots.size(); ++i) {
      if (scene.owned[writer] >> i & 1) mine_.push_back(static_cast<int>(i));
    }
  }
  bool idle() const { return mine_.empty(); }
  Slots present() const { return present_; }
  std::uint64_t done() const { return done_; }

  Op step() {
    if (left_ == 0) begin_spell();
    --left_;
    Op op{};
    for (int attempt = 0; attempt < 4; ++attempt) {
      Op const wish = next_wish();
      Slots const in_the_way = scene_->conflicts[wish.slot] & present_;
      op.insert = in_the_way == 0;
      op.slot = op.insert ? wish.slot : std::countr_zero(in_the_way);
      if (op.insert == wish.insert) break;
    }
    present_ ^= Slots{1} << op.slot;
    ++done_;
    return op;
  }

 private:
  enum class Spell { filling, emptying, sliding };

  void begin_spell() {
    spell_ = static_cast<Spell>(random_.below(3));
    left_ = 1 + random_.below(64);
    first_ = random_.below(mine_.size());
    width_ = 1 + random_.below(mine_.size());
  }
  Op next_wish() {
    if (spell_ != Spell::sliding) return {mine_[(first_ + random_.below(width_)) % mine_.size()], spell_ == Spell::filling};
    bool const insert = ++tick_ % 2 == 0;
    return {mine_[(first_ + tick_ / 2 + (insert ? width_ : 0)) % mine_.size()], insert};
  }

  Scene const* scene_;
  Random random_;
  std::vector<int> mine_;
  Slots present_ = 0;
  std::uint64_t done_ = 0;
  Spell spell_ = Spell::filling;
  std::uint64_t left_ = 0, first_ = 0, width_ = 0, tick_ = 0;
};

/// The number of operations that a writer has begun and done, for all threads to read.
struct alignas(64) Progress {
  std::atomic<std::uint64_t> begun = 0, done = 0;
};

/// The value that the tests store with each region, derived from its bounds: readers check that both belong together.
struct Stamp {
  std::atomic<std::uint64_t> start, size;
};
struct Seen {
  std::uint64_t start = 0, size = 0;
};

inline void fill(pagetable::Nothing&, Range) {}
inline void fill(Stamp& stamp, Range range) {
  stamp.start.store(~range.start, std::memory_order_release);
  stamp.size.store(range.size * 3, std::memory_order_release);
}
inline void look(pagetable::Nothing const&, Seen&) {}
inline void look(Stamp const& stamp, Seen& seen) {
  seen.size = stamp.size.load(std::memory_order_acquire);
  seen.start = stamp.start.load(std::memory_order_acquire);
}
inline bool fits(pagetable::Nothing const*, Seen, Region const&) { return true; }
inline bool fits(Stamp const*, Seen seen, Region const& region) {
  return seen.start == ~region.start && seen.size == region.size * 3;
}

inline std::string describe(Address address, std::optional<Region> const& region) {
  char text[128];
  if (region) {
    std::snprintf(text, sizeof text, "find(%#zx) = [%#zx, +%#zx) id %u", std::size_t{address}, std::size_t{region->start},
                  std::size_t{region->size}, region->id);
  } else {
    std::snprintf(text, sizeof text, "find(%#zx) = nothing", std::size_t{address});
  }
  return text;
}

/// What is played, for messages.
template <class Value>
std::string name_of(Scene const& scene, bool flat, std::uint64_t seed) {
  return scene.name + (flat ? ", flat" : ", pooled") + (std::is_empty_v<Value> ? "" : ", with values") + ", seed " + std::to_string(seed);
}

/// Insert the steady regions of a scene.
template <class Value>
std::vector<Region> insert_steady(pagetable::PageTable<Value>& table, Scene const& scene) {
  std::vector<Region> steady;
  for (Range range : scene.steady) {
    steady.push_back(table.insert(range.start, range.size, [&](Value& value) { fill(value, range); }));
  }
  return steady;
}

/// Executes one writer's script, one operation per call, and publishes its progress before and after each.
template <class Value>
class Writer {
 public:
  Writer(pagetable::PageTable<Value>& table, Scene const& scene, int writer, std::uint64_t seed, Progress& progress)
      : table_(table), scene_(scene), script_(scene, writer, seed), progress_(progress) {}
  bool idle() const { return script_.idle(); }

  /// Returns a description of what was wrong, or an empty string.
  std::string step() {
    Op const op = script_.step();
    Range const range = scene_.slots[op.slot];
    progress_.begun.store(script_.done(), std::memory_order_release);
    std::string wrong;
    if (op.insert) {
      Region const region = table_.insert(range.start, range.size, [&](Value& value) { fill(value, range); });
      if (table_.find(range.last()) != region) wrong = "inserted, but " + describe(range.last(), table_.find(range.last()));
    } else {
      auto const region = table_.remove(range.start);
      if (!region || region->size != range.size) wrong = "removed something else than " + describe(range.start, region);
    }
    progress_.done.store(script_.done(), std::memory_order_release);
    return wrong;
  }

 private:
  pagetable::PageTable<Value>& table_;
  Scene const& scene_;
  Script script_;
  Progress& progress_;
};

/// Looks up probes and checks the answers against the scripts: for each answer there must be an instant at which it was
/// right, not before that of the preceding answer. All instants lie between the operations that the writer had done
/// when the questions began and those that it had begun when the last was answered.
template <class Value>
class Reader {
 public:
  Reader(pagetable::PageTable<Value> const& table, Scene const& scene, std::vector<Region> const& steady,
         std::uint64_t script_seed, std::array<Progress, 2> const& progress, std::uint64_t seed)
      : table_(table),
        scene_(scene),
        steady_(steady),
        scripts_{Script(scene, 0, script_seed), Script(scene, 1, script_seed)},
        progress_(progress),
        random_(seed) {}

  /// Asks a few questions in a row. Returns a description of what was wrong, or an empty string.
  std::string step() {
    std::array<Question, 8> questions;
    std::size_t const count = 1 + random_.below(questions.size());
    std::size_t const first = random_.below(scene_.probes.size()), stride = random_.below(4);
    for (std::size_t i = 0; i < count; ++i) {
      std::size_t const at = stride == 3 ? random_.below(scene_.probes.size()) : first + i * stride;
      questions[i].probe = &scene_.probes[at % scene_.probes.size()];
    }
    std::array<std::uint64_t, 2> const done = {progress_[0].done.load(std::memory_order_acquire),
                                               progress_[1].done.load(std::memory_order_acquire)};
    for (std::size_t i = 0; i < count; ++i) {
      Question& question = questions[i];
      question.answer = table_.find(question.probe->address, [&](Value const& value) { look(value, question.seen); });
    }
    std::array<std::uint64_t, 2> const begun = {progress_[0].begun.load(std::memory_order_acquire),
                                                progress_[1].begun.load(std::memory_order_acquire)};
    answers_ += count;
    for (std::size_t writer = 0; writer < 2; ++writer) {
      while (scripts_[writer].done() < done[writer]) scripts_[writer].step();
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (auto const wrong = judge(questions[i], begun[questions[i].probe->writer]); !wrong.empty()) {
        return wrong + " (question " + std::to_string(i + 1) + " of " + std::to_string(count) + ", writer did " +
               std::to_string(done[questions[i].probe->writer]) + " and began " +
               std::to_string(begun[questions[i].probe->writer]) + " operations)";
      }
    }
    return {};
  }
  std::uint64_t answers() const { return answers_; }

 private:
  struct Question {
    Scene::Probe const* probe;
    std::optional<Region> answer;
    Seen seen;
  };

  std::string judge(Question const& question, std::uint64_t begun) {
    Scene::Probe const& probe = *question.probe;
    auto const& answer = question.answer;
    std::string const said = describe(probe.address, answer);
    if (answer && !fits(static_cast<Value const*>(nullptr), question.seen, *answer)) return said + ": another's value";
    if (probe.steady >= 0) return answer == steady_[probe.steady] ? "" : said + ": a steady region is there";
    Slots slot = 0;
    if (answer) {
      for (std::size_t i = 0; i < scene_.slots.size(); ++i) {
        bool const same = scene_.slots[i].start == answer->start && scene_.slots[i].size == answer->size;
        if (same && probe.covering >> i & 1) slot = Slots{1} << i;
      }
      if (slot == 0) return said + ": no region of these bounds is ever there";
    }
    Script& script = scripts_[probe.writer];
    Slots const expected = script.present() & probe.covering;
    while ((script.present() & probe.covering) != slot) {
      if (script.idle() || script.done() >= begun) {
        return said + ": at no instant so; first " + (expected == 0 ? "nothing" : "slot " + std::to_string(std::countr_zero(expected))) +
               " is there";
      }
      script.step();
    }
    return {};
  }

  pagetable::PageTable<Value> const& table_;
  Scene const& scene_;
  std::vector<Region> const& steady_;
  std::array<Script, 2> scripts_;
  std::array<Progress, 2> const& progress_;
  Random random_;
  std::uint64_t answers_ = 0;
};

}  // namespace churn
