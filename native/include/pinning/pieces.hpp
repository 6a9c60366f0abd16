// SPDX-License-Identifier: Apache-2.0
// A range locked by several vendor calls, one piece each.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "locker.hpp"
#include "registrar.hpp"

namespace pinning {

/// Where the pieces of a range end, in bytes from its start, ascending. One vendor call has locked each piece, which
/// begins at the end of the one before.
using PieceEnds = std::vector<std::uint64_t>;

/// What the vendor has locked of a region, the locker that called it, and the registrations with registrars.
struct Registered {
  PieceEnds ends;
  Locker* by = nullptr;
  std::vector<Registration> registrations{};

  std::uint64_t bytes() const noexcept { return ends.empty() ? 0 : ends.back(); }
  bool has(Registrar const& registrar) const noexcept {
    return std::any_of(registrations.begin(), registrations.end(),
                       [&](auto const& each) { return each.with == &registrar; });
  }
};

/// Add what is locked from `ptr` on to a registrar, in pieces of the size that it takes. If it throws, `registered` has
/// those that were added.
inline void register_with(Registrar& registrar, Address ptr, Registered& registered) {
  std::uint64_t const size = registered.bytes(), most = registrar.piece() == 0 ? size : registrar.piece();
  registered.registrations.reserve(registered.registrations.size() + (size - 1) / most + 1);
  for (std::uint64_t at = 0; at < size; at += most) {
    registered.registrations.push_back({&registrar, registrar.add(ptr + at, std::min(most, size - at))});
    ++registrar.uses;
  }
}

/// Remove registrations from their registrars, last first. If one throws, `registrations` keeps the rest.
inline void deregister(std::vector<Registration>& registrations) {
  while (!registrations.empty()) {
    Registrar& registrar = *registrations.back().with;
    registrar.remove(registrations.back().handle);
    registrations.pop_back();
    --registrar.uses;
  }
}

/// The same, without another try: registrations that a registrar refuses to remove are forgotten.
inline void deregister_noexcept(std::vector<Registration>& registrations) noexcept {
  while (!registrations.empty()) {
    try {
      deregister(registrations);
    } catch (...) {
      --registrations.back().with->uses;
      registrations.pop_back();
    }
  }
}

/// Unlock the piece that starts at `ptr`; the memory in `gone` no longer exists.
inline void unlock_piece(Locker& locker, Address ptr, std::optional<Span> gone) {
  if (gone) {
    locker.forget(ptr, *gone);
  } else {
    locker.unlock(ptr);
  }
}

/// Unlock the pieces of a region that starts at `ptr`, last first, after removing them from the registrars. If that
/// throws, `registered` keeps the pieces that are still locked.
inline void unlock_pieces(Address ptr, Registered& registered, std::optional<Span> gone) {
  deregister(registered.registrations);
  PieceEnds& ends = registered.ends;
  while (!ends.empty()) {
    unlock_piece(*registered.by, ptr + (ends.size() > 1 ? ends[ends.size() - 2] : 0), gone);
    ends.pop_back();
  }
}

/// The lock was ended while it was being taken, by its owner or by `clear`.
struct Ended : StillLocked {
  using StillLocked::StillLocked;
};

/// How a lock is divided into vendor calls, and its progress.
class Pieces {
 public:
  virtual ~Pieces() = default;

  /// Every piece begins at a multiple of this many bytes from the start, so that copies know where borders may be. 0:
  /// there is one piece.
  virtual std::uint64_t unit() const noexcept = 0;

  /// Bytes that the next vendor call locks: a multiple of `unit`, or all that is left. Called before each vendor call,
  /// with no lock held, so it may wait. If it throws, the lock is ended and undone.
  virtual std::uint64_t next(std::uint64_t held, std::uint64_t size) = 0;

  /// `cut(size, most)`: the vendor takes at most `most` bytes in one call. If a piece of a range of `size` bytes would
  /// be larger, reduce pieces and `unit` to `most`. Called before anything is locked. False if nothing has changed.
  virtual bool cut(std::uint64_t, std::uint64_t) noexcept { return false; }

  /// Called when this many bytes from the start are locked and can be found.
  virtual void locked(std::uint64_t) noexcept {}
};

/// Pieces of `piece` bytes each, except the last; 0: one piece.
class EqualPieces final : public Pieces {
 public:
  explicit EqualPieces(std::uint64_t piece) : piece_(piece) {}

  std::uint64_t unit() const noexcept override { return piece_; }
  std::uint64_t next(std::uint64_t held, std::uint64_t size) override {
    return piece_ == 0 ? size : std::min(piece_, size - held);
  }
  bool cut(std::uint64_t size, std::uint64_t most) noexcept override {
    if (std::min(size, piece_ == 0 ? size : piece_) <= most) return false;
    piece_ = most;
    return true;
  }

 private:
  std::uint64_t piece_;
};

}  // namespace pinning
