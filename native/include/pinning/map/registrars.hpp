// SPDX-License-Identifier: Apache-2.0
// Registrations of a map's regions with registrars. A part of pinned_map.hpp, which includes it.
#pragma once

namespace pinning {

/// The registrars of a map, none of which is destroyed meanwhile.
class PinnedMap::RegistrarPins {
 public:
  explicit RegistrarPins(PinnedMap& map) {
    std::lock_guard const guard(map.mutex_);
    all.reserve(map.registrars_.size());
    for (auto const& each : map.registrars_) {
      ++each->uses;
      all.push_back(each.get());
    }
  }
  ~RegistrarPins() {
    for (Registrar* const each : all) --each->uses;
  }
  RegistrarPins(RegistrarPins const&) = delete;

  std::vector<Registrar*> all;
};

inline void PinnedMap::add_registrar(std::unique_ptr<Registrar> registrar) {
  Registrar& added = *registrar;
  std::exception_ptr refused;
  std::unique_ptr<Registrar> removed;
  std::unique_lock guard(mutex_);
  if (registrar_of(added.self()) != nullptr) throw InvalidArgument("a registrar of this map has that `self` already");
  registrars_.push_back(std::move(registrar));
  any_registrars_ = true;
  ++added.uses;  // until all regions are added: its removal waits for that
  try {
    for (auto const& range : table_.regions()) {
      if (!has(added)) break;
      register_existing(guard, range, added);
    }
  } catch (...) {
    refused = std::current_exception();
  }
  if (!guard.owns_lock()) guard.lock();
  if (refused) removed = take_out(added);
  --added.uses;
  state_changed_.notify_all();
  if (!refused) return;
  try {
    if (removed) take_back_all(guard, *removed);
  } catch (std::exception const&) {  // the first error says more
  }
  if (guard.owns_lock()) guard.unlock();
  std::rethrow_exception(refused);
}

inline bool PinnedMap::remove_registrar(void const* self, bool wait) {
  if (is_parents()) return true;
  auto const destroy = [](Registrar* each) {
    if (each->uses == 0) delete each;
  };
  std::unique_ptr<Registrar, decltype(destroy)> removed;  // destroyed without the mutex
  std::unique_lock guard(mutex_);
  Registrar* const registrar = registrar_of(self);
  if (registrar == nullptr) return false;
  removed.reset(take_out(*registrar).release());
  take_back_all(guard, *removed, wait);
  return true;
}

inline Registrar* PinnedMap::registrar_of(void const* self) const noexcept {
  auto const entry = std::find_if(registrars_.begin(), registrars_.end(),
                                  [&](auto const& each) { return each->self() == self; });
  return entry == registrars_.end() ? nullptr : entry->get();
}

inline bool PinnedMap::has(Registrar const& registrar) const noexcept {
  return std::any_of(registrars_.begin(), registrars_.end(), [&](auto const& each) { return each.get() == &registrar; });
}

/// Take a registrar off the list, so that no further thread adds regions to it.
inline std::unique_ptr<Registrar> PinnedMap::take_out(Registrar& registrar) noexcept {
  auto const entry = std::find_if(registrars_.begin(), registrars_.end(),
                                  [&](auto const& each) { return each.get() == &registrar; });
  if (entry == registrars_.end()) return nullptr;
  auto removed = std::move(*entry);
  registrars_.erase(entry);
  any_registrars_ = !registrars_.empty();
  return removed;
}

/// Remove everything from a registrar that was taken out, also what is just being added if `wait`, and release the mutex.
/// Throws its first error at the end.
inline void PinnedMap::take_back_all(std::unique_lock<std::mutex>& guard, Registrar& registrar, bool wait) {
  std::exception_ptr first_error;
  for (;;) {
    std::vector<Registration> known;
    for (auto& [id, registered] : ends_) {
      auto& all = registered.registrations;
      auto const is_its = [&](auto const& each) { return each.with == &registrar; };
      std::copy_if(all.begin(), all.end(), std::back_inserter(known), is_its);
      std::erase_if(all, is_its);
    }
    if (known.empty() && (registrar.uses == 0 || !wait)) break;
    if (known.empty()) {  // in use by a thread that is adding it, locking or unlocking
      state_changed_.wait(guard);
      continue;
    }
    guard.unlock();
    for (; !known.empty(); known.pop_back()) {
      try {
        registrar.remove(known.back().handle);
      } catch (...) {
        if (!first_error) first_error = std::current_exception();
      }
      --registrar.uses;
    }
    guard.lock();
  }
  guard.unlock();
  if (first_error) std::rethrow_exception(first_error);
}

/// Add a region that is in transit to all registrars; `registered` has what was added, also if one of them throws.
inline void PinnedMap::register_with_all(Address start, Registered& registered) {
  if (!any_registrars_) return;
  RegistrarPins const pins(*this);
  for (Registrar* const each : pins.all) register_with(*each, start, registered);
}

/// Add an existing region to a registrar that lacks it. Meanwhile the mutex is released, and a lock in the region held.
inline void PinnedMap::register_existing(std::unique_lock<std::mutex>& guard, pagetable::Region const& range,
                               Registrar& registrar) {
  while (!await_outcomes(guard, range.start, range.size)) {
  }
  auto const region = table_.find(range.start);
  if (!region || *region != range) return;
  Record& record = table_.value(region->id);
  if (record.has(external)) return;
  auto known = ends_.find(region->id);
  if (known != ends_.end() && known->second.has(registrar)) return;
  bool const was_idle = record.state.load(std::memory_order_relaxed) == State::idle;
  auto const hold = count_existing(region->start, 1, Coherence::unknown, no_serial);
  if (!hold) return;
  Registered added{{record.held.load(std::memory_order_relaxed)}, &locker_};
  guard.unlock();
  std::exception_ptr refused;
  try {
    register_with(registrar, region->start, added);
  } catch (...) {
    refused = std::current_exception();
  }
  guard.lock();
  auto const now = table_.find(region->start);
  if (now && serial_of(*now) == hold->serial && Record::is_shown(record.state.load(std::memory_order_relaxed))) {
    try {
      known = ends_.try_emplace(region->id, Registered{added.ends, added.by}).first;
      auto& all = known->second.registrations;
      all.insert(all.end(), added.registrations.begin(), added.registrations.end());
      added.registrations.clear();
    } catch (std::bad_alloc const&) {
      refused = std::current_exception();
    }
  }
  guard.unlock();
  deregister_noexcept(added.registrations);  // if it is gone meanwhile
  unlock(*hold, was_idle);
  guard.lock();
  if (refused) std::rethrow_exception(refused);
}

}  // namespace pinning
