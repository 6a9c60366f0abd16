// SPDX-License-Identifier: Apache-2.0
#include <pinning/pool.hpp>
#include <utility>

namespace pinning {

Pool::Pool(std::unique_ptr<Source> source, std::size_t devices, std::uint64_t most, std::uint64_t keep)
    : source_(std::move(source)), most_(most), keep_(keep) {
  while (devices_.size() < devices) devices_.push_back(std::make_unique<Blocks>());
}

Pool::~Pool() = default;

Pool::Figures Pool::figures() {
  std::lock_guard const state(state_);
  note_high();
  return figures_;
}

void Pool::reset_high() {
  std::lock_guard const state(state_);
  figures_.reserved_high = figures_.reserved;
  figures_.used_high = figures_.used;
}

// ---- allocating ----

Pool::Block* Pool::take_free(std::size_t device, std::uint64_t size, Dependencies const& before) {
  std::lock_guard const state(state_);
  if (closed_) throw Closed("the pool is closed; nothing can be allocated in it");
  Block* const block = devices_[device]->take(size, before);
  if (block != nullptr) figures_.used += size;
  return block;
}

Pool::Block* Pool::take(std::size_t device, std::uint64_t size, Dependencies const& before) {
  if (Block* const block = take_free(device, size, before)) return block;
  poll();
  for (;;) {  // other threads may take what this one has given back
    std::uint64_t const earlier = given_back();
    if (Block* const block = take_free(device, size, before)) return block;
    if (reserve(size)) return grow(device, size);
    if (size > most_ || !make_room(most_ - size, earlier)) return nullptr;
  }
}

/// Give memory back until at most `upto` bytes are reserved; whether any was, also by another thread since `given_back` was
/// `earlier`.
bool Pool::make_room(std::uint64_t upto, std::uint64_t earlier) {
  return release(upto, nullptr) || wait_for_others(earlier);
}

/// Make room for new memory; false if that would exceed the limit.
bool Pool::reserve(std::uint64_t size) {
  std::lock_guard const state(state_);
  if (closed_) throw Closed("the pool is closed; nothing can be allocated in it");
  if (size > most_ || figures_.reserved + growing_ > most_ - size) return false;
  growing_ += size;
  return true;
}

/// A block of new memory, for which there is room.
Pool::Block* Pool::grow(std::size_t device, std::uint64_t size) {
  auto const end = [&](Memory const* made) {
    std::lock_guard const state(state_);
    Block* const block = made == nullptr ? nullptr : devices_[device]->add(made->base, made->device_base, size);
    growing_ -= size;
    if (block == nullptr) return block;
    figures_.reserved += size;
    figures_.reserved_high = std::max(figures_.reserved_high, figures_.reserved);
    figures_.used += size;
    return block;
  };
  try {
    Memory const made = allocate(device, size);
    try {
      return end(&made);
    } catch (...) {
      bool gone = false;
      source_->free(device, made.base, gone);
      throw;
    }
  } catch (...) {
    end(nullptr);
    throw;
  }
}

/// Ask the source, again while memory could be given back after a refusal.
Pool::Memory Pool::allocate(std::size_t device, std::uint64_t size) {
  for (;;) {
    std::uint64_t const earlier = given_back();
    try {
      return source_->allocate(device, size);
    } catch (std::exception const&) {
      if (!make_room(0, earlier)) throw;
    }
  }
}

/// The lanes of work that may still use what is free.
std::vector<std::shared_ptr<Lane>> Pool::lanes_of_frees() {
  std::vector<std::shared_ptr<Lane>> lanes;
  std::lock_guard const state(state_);
  for (auto const& blocks : devices_) blocks->add_lanes(lanes);
  return lanes;
}

void Pool::poll() {
  for (auto const& lane : lanes_of_frees()) {
    try {
      lane->poll();
    } catch (std::exception const&) {  // a parent process's: what was freed there stays as it is
    }
  }
}

// ---- freeing ----

void Pool::order(Block& block, Event const& event) {
  if (block.after.replace(event.timeline(), event.position())) return;
  Dependencies after, history;
  after.add(event.timeline(), event.position());
  event.add_history(history);
  after.add_uncovered(block.after, history);
  block.after.swap(after);
}

bool Pool::free(std::size_t device, Block* block) noexcept {
  std::lock_guard const state(state_);
  note_high();
  figures_.used -= block->size;
  devices_[device]->give_back(block);
  return figures_.reserved > keep_;
}

void Pool::untake(std::size_t device, Block* block) noexcept {
  std::lock_guard const state(state_);
  figures_.used -= block->size;
  devices_[device]->give_back(block);
}

void Pool::free_excess() { release(keep_, nullptr); }

// ---- giving back to the source ----

/// Give back segments that are free as a whole while more than `upto` bytes are reserved; whether any was. What the source
/// refuses stays in the pool; the first refusal is stored.
bool Pool::release(std::uint64_t upto, std::exception_ptr* refusal) {
  struct Refused {
    Pool& pool;
    std::vector<Claim> all = {};  // still claimed, so that none is tried twice
    ~Refused() {
      std::lock_guard const state(pool.state_);
      for (auto const& [device, block] : all) pool.devices_[device]->give_back(block);
    }
  } refused{*this};
  bool any = false;
  poll();
  while (auto const claimed = claim_idle(upto, refused.all)) {
    std::exception_ptr const error = give_back(*claimed, refused.all);
    if (error == nullptr) any = true;
    else if (refusal != nullptr && *refusal == nullptr) *refusal = error;
  }
  return any;
}

/// A segment that can be given back, the largest of its device, as a block in use, with room for it in `refused`; nullopt:
/// none or enough. All devices at once, because another thread may use one device's memory and free another's meanwhile.
std::optional<Pool::Claim> Pool::claim_idle(std::uint64_t upto, std::vector<Claim>& refused) {
  refused.reserve(refused.size() + 1);
  std::lock_guard const state(state_);
  if (figures_.reserved + growing_ <= upto) return std::nullopt;
  for (bool const coalesced : {false, true}) {
    for (std::size_t device = 0; device < devices_.size(); ++device) {
      Blocks& blocks = *devices_[device];
      if (coalesced) blocks.coalesce();
      auto const* const idle = blocks.idle();
      if (idle == nullptr) continue;
      figures_.reserved -= idle->length;
      ++leaving_;
      return Claim{device, blocks.claim(idle)};
    }
  }
  return std::nullopt;
}

/// Give a claimed segment back to the source. Returns its refusal; throws what is no std::exception.
std::exception_ptr Pool::give_back(Claim claimed, std::vector<Claim>& refused) {
  bool gone = false;
  std::exception_ptr error;
  auto const end = [&] {
    std::lock_guard const state(state_);
    if (error == nullptr || gone) {
      devices_[claimed.device]->remove(claimed.block);
      ++given_back_;
    } else {
      figures_.reserved += claimed.block->size;
      refused.push_back(claimed);
    }
    --leaving_;
    one_left_.notify_all();
  };
  try {
    source_->free(claimed.device, claimed.block->start, gone);
  } catch (std::exception const&) {
    error = std::current_exception();
  } catch (...) {
    error = std::current_exception();
    end();
    throw;
  }
  end();
  return error;
}

std::uint64_t Pool::given_back() {
  std::lock_guard const state(state_);
  return given_back_;
}

/// Whether memory has been given back since `given_back` was `earlier`; waits while threads are giving some back.
bool Pool::wait_for_others(std::uint64_t earlier) {
  std::unique_lock state(state_);
  one_left_.wait(state, [&] { return given_back_ != earlier || leaving_ == 0; });
  return given_back_ != earlier;
}

void Pool::trim(std::uint64_t upto) {
  std::exception_ptr refusal;
  release(upto, &refusal);
  if (refusal != nullptr) std::rethrow_exception(refusal);
}

Pool::Left Pool::close(Meanwhile meanwhile) {
  auto const set_closed = [&](bool closed) {
    std::lock_guard const state(state_);
    closed_ = closed;
  };
  {
    std::lock_guard const state(state_);
    if (std::uint64_t const used = figures_.used + growing_) return {used, 0};
    closed_ = true;
  }
  try {
    for (auto const& lane : lanes_of_frees()) {
      try {
        lane->outlast(meanwhile);
      } catch (std::exception const&) {  // what is left is counted below
      }
    }
    trim(0);
    {
      std::unique_lock state(state_);  // what the source refuses other threads comes back
      one_left_.wait(state, [&] { return leaving_ == 0; });
    }
    Left const left{0, figures().reserved};
    set_closed(left.pending == 0);
    return left;
  } catch (...) {
    set_closed(false);
    throw;
  }
}

}  // namespace pinning
