// SPDX-License-Identifier: Apache-2.0
#include "alone.hpp"

#include <link.h>

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
std::string earlier_copy() {
  std::string found;
  auto const look = [](dl_phdr_info* object, std::size_t, void* into) {
    if (!soname_of(*object).starts_with("libpinning.so.")) return 0;
    bool const is_this = contains(*object, reinterpret_cast<void const*>(&check_alone));
    if (!is_this) *static_cast<std::string*>(into) = object->dlpi_name;
    return 1;
  };
  dl_iterate_phdr(look, &found);
  return found;
}

}  // namespace

void check_alone() {
  static std::string const earlier = earlier_copy();
  if (earlier.empty()) return;
  throw Unavailable("another copy of libpinning is loaded, " + earlier +
                    ", and a process can have only one: load libpinning.so.0 by that name, or by this path");
}

}  // namespace pinning
