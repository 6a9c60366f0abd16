// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <pinning/vendor.hpp>
#include <vector>

namespace pinning {

/// Copies all parts by a vendor's batch call, some thousands at a time: one driver crashed with 50 000, another above
/// 8 192. `call(dsts, srcs, sizes, count)` returns the vendor's code. If it refuses, the parts are copied one by one: a
/// batch call refuses copies that single calls accept, and does not say which.
template <class Pointer, class Call>
void copy_by_batch_call(VendorQueue& queue, CopyItem const* parts, std::uint64_t count, Call&& call) {
  constexpr std::uint64_t most = 4096;
  std::size_t const room = std::min(count, most);
  std::vector<Pointer> dsts(room), srcs(room);
  std::vector<std::size_t> sizes(room);
  for (std::uint64_t at = 0; at < count; at += most) {
    std::size_t const now = std::min(most, count - at);
    for (std::size_t i = 0; i < now; ++i) {
      dsts[i] = (Pointer)parts[at + i].dst;  // an integer or a pointer
      srcs[i] = (Pointer)parts[at + i].src;
      sizes[i] = parts[at + i].size;
    }
    if (call(dsts.data(), srcs.data(), sizes.data(), now) != 0) queue.VendorQueue::copy_batch(parts + at, now);
  }
}

}  // namespace pinning
