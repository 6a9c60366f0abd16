// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

#include <cstdint>
#include <map>
#include <tuple>

namespace pinning {

/// The locks that are held (borrowed references), by their bytes and by their region.
class OpenLocks {
 public:
  using Word = std::uint64_t;
  void enter(void const* map, Word ptr, Word size, Word region, Word serial, PyObject* lock) {
    by_bytes_[{map, ptr, size, serial}] = lock;
    try {
      by_region_[{map, region, 0, serial}] = lock;
    } catch (...) {
      by_bytes_.erase({map, ptr, size, serial});
      throw;
    }
  }
  void leave(void const* map, Word ptr, Word size, Word region, Word serial) {
    by_bytes_.erase({map, ptr, size, serial});
    by_region_.erase({map, region, 0, serial});
  }
  /// The youngest that is older than one with serial `before`.
  PyObject* of_bytes(void const* map, Word ptr, Word size, Word before) { return last(by_bytes_, {map, ptr, size, before}); }
  PyObject* of_region(void const* map, Word region, Word before) { return last(by_region_, {map, region, 0, before}); }

  /// A lock of any of these bytes for which `is_meant`.
  PyObject* within(void const* map, Word ptr, Word size, bool (*is_meant)(PyObject*)) {
    for (auto each = by_bytes_.lower_bound({map, ptr + size, 0, 0}); each != by_bytes_.begin();) {
      auto const& [of, start, length, serial] = (--each)->first;
      if (of != map) break;
      if (start + length > ptr && is_meant(each->second)) return each->second;
    }
    return nullptr;
  }

 private:
  using Key = std::tuple<void const*, Word, Word, Word>;
  using Locks = std::map<Key, PyObject*>;
  static PyObject* last(Locks const& locks, Key const& before) {
    auto found = locks.lower_bound(before);
    if (found == locks.begin()) return nullptr;
    Key key = (--found)->first;
    std::get<3>(key) = std::get<3>(before);
    return key == before ? found->second : nullptr;
  }
  Locks by_bytes_, by_region_;
};

}  // namespace pinning
