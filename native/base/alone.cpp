// SPDX-License-Identifier: Apache-2.0
#include "alone.hpp"

#include <link.h>

#include <cstdlib>
#include <cstring>
#include <pinning/errors.hpp>
#include <span>
#include <string>
#include <string_view>

namespace pinning {

namespace {

bool contains(dl_phdr_info const& object, void const* address) noexcept {
  auto const offset = reinterpret_cast<std::uintptr_t>(address) - object.dlpi_addr;
  for (auto const& segment : std::span(object.dlpi_phdr, object.dlpi_phnum)) {
    if (segment.p_type == PT_LOAD && offset - segment.p_vaddr < segment.p_memsz) return true;
  }
  return false;
}

std::string_view soname_of(dl_phdr_info const& object) noexcept {
  std::uintptr_t strings = 0, at = 0;
  for (auto const& segment : std::span(object.dlpi_phdr, object.dlpi_phnum)) {
    if (segment.p_type != PT_DYNAMIC) continue;
    auto const* entry = reinterpret_cast<ElfW(Dyn) const*>(object.dlpi_addr + segment.p_vaddr);
    for (; entry->d_tag != DT_NULL; ++entry) {
      if (entry->d_tag == DT_STRTAB) strings = entry->d_un.d_ptr;
      if (entry->d_tag == DT_SONAME) at = entry->d_un.d_val;
    }
  }
  if (strings == 0 || at == 0) return {};
  if (strings < object.dlpi_addr) strings += object.dlpi_addr;  // the loader relocates this entry, but not in the vDSO
  return reinterpret_cast<char const*>(strings + at);
}

/// The file of the copy that was loaded first, unless that is this one.
constinit char const* earlier = nullptr;

/// Looks when the library is loaded: a later look would need a lock, which a child of fork could find held.
[[gnu::constructor]] void look_for_earlier() {
  auto const look = [](dl_phdr_info* object, std::size_t, void*) {
    if (!soname_of(*object).starts_with("libpinning.so.")) return 0;
    bool const is_this = contains(*object, reinterpret_cast<void const*>(&check_alone));
    if (!is_this && (earlier = strdup(object->dlpi_name)) == nullptr) std::abort();  // no memory for a few words
    return 1;
  };
  dl_iterate_phdr(look, nullptr);
}

}  // namespace

void check_alone() {
  if (earlier == nullptr) return;
  throw Unavailable("another copy of libpinning is loaded, " + std::string(earlier) +
                    ", and a process can have only one: load libpinning.so.0 by that name, or by this path");
}

}  // namespace pinning
