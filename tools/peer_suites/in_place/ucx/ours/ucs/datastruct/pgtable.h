// SPDX-License-Identifier: Apache-2.0
// The functions of UCX's page table, implemented over <pagetable/page_table.hpp>.
#pragma once

#include <ucs/config/types.h>
#include <ucs/type/status.h>

extern "C++" {  // the test includes this in an extern "C" block

#include <atomic>
#include <memory>
#include <pagetable/page_table.hpp>

#define UCS_PGT_ADDR_ALIGN 1ul  // any alignment: UCX then skips its test of misaligned ranges

typedef unsigned long ucs_pgt_addr_t;
struct ucs_pgt_region_t {
  ucs_pgt_addr_t start, end;
};
struct ucs_pgt_dir_t {};
struct UcsPointer {
  std::atomic<ucs_pgt_region_t*> region{nullptr};
};
struct ucs_pgtable_t {
  std::unique_ptr<pagetable::PageTable<UcsPointer>> table;
};
typedef void (*ucs_pgt_callback_t)(ucs_pgtable_t const*, ucs_pgt_region_t*, void*);

template <class Allocate, class Release>
ucs_status_t ucs_pgtable_init(ucs_pgtable_t* self, Allocate, Release) {
  self->table = std::make_unique<pagetable::PageTable<UcsPointer>>();
  return UCS_OK;
}

inline void ucs_pgtable_cleanup(ucs_pgtable_t* self) { self->table.reset(); }

inline ucs_pgt_region_t* ucs_pgtable_lookup(ucs_pgtable_t const* self, ucs_pgt_addr_t address) {
  ucs_pgt_region_t* region = nullptr;
  auto const look = [&](UcsPointer const& value) { region = value.region.load(std::memory_order_acquire); };
  return self->table->find(address, look) ? region : nullptr;
}

inline ucs_status_t ucs_pgtable_insert(ucs_pgtable_t* self, ucs_pgt_region_t* region) {
  if (region->end < region->start) return UCS_ERR_INVALID_PARAM;
  try {
    self->table->insert(region->start, region->end - region->start,
                        [&](UcsPointer& value) { value.region.store(region, std::memory_order_release); });
  } catch (pagetable::Overlap const&) {
    return UCS_ERR_ALREADY_EXISTS;
  } catch (pagetable::InvalidRange const&) {
    return UCS_ERR_INVALID_PARAM;
  }
  return UCS_OK;
}

inline ucs_status_t ucs_pgtable_remove(ucs_pgtable_t* self, ucs_pgt_region_t* region) {
  if (ucs_pgtable_lookup(self, region->start) != region) return UCS_ERR_NO_ELEM;
  return self->table->remove(region->start) ? UCS_OK : UCS_ERR_NO_ELEM;
}

inline void ucs_pgtable_search_range(ucs_pgtable_t const* self, ucs_pgt_addr_t from, ucs_pgt_addr_t to,
                                     ucs_pgt_callback_t callback, void* argument) {
  if (to < from) return;
  for (auto const& found : self->table->overlapping(from, to - from + 1)) {
    callback(self, ucs_pgtable_lookup(self, found.start), argument);
  }
}

inline void ucs_pgtable_purge(ucs_pgtable_t* self, ucs_pgt_callback_t callback, void* argument) {
  for (auto const& found : self->table->regions()) {
    auto* const region = ucs_pgtable_lookup(self, found.start);
    self->table->remove(found.start);
    callback(self, region, argument);
  }
}

inline void ucs_pgtable_dump(ucs_pgtable_t const*, int) {}

inline unsigned ucs_pgtable_num_regions(ucs_pgtable_t const* self) { return self->table->size(); }

}  // extern "C++"
