// SPDX-License-Identifier: Apache-2.0
// How a program gets the functions of entry.cpp: this library replaces `dlsym`, through which programs that open
// libcuda at run time find them; direct calls find them by name, because this library is loaded first.
//
// Nothing else about dlsym may change, because every program calls it. So it is a few instructions that jump to libc's
// own, as if the caller had called that: the meaning of RTLD_NEXT and RTLD_DEFAULT depends on the address of the call.
// Only names in symbols.hpp are treated differently.
#include "symbols.hpp"

#include <dlfcn.h>

#include <cstring>
#include <iterator>
#include <pinning/staging.hpp>

#include "../next_function.hpp"
#include "../this_process.hpp"
#include "driver.hpp"
#include "entry.hpp"
#include "ledger.hpp"
#include "settings.hpp"

namespace pinning::tool::cuda {

std::atomic<void*> driver_functions[symbols];

namespace {

struct Entry {
  char const* exported;
  char const* name;
  int first, last;
  bool per_thread;
  void* function;

  bool has_stream() const noexcept { return std::strcmp(name, "cuGetProcAddress") != 0; }
};
constexpr int newest = 1 << 30;
#define PINNING_ENTRY(exported, ...) {#exported, __VA_ARGS__, reinterpret_cast<void*>(&::exported)},
// Not initialized by a constructor: constructors of other libraries may call dlsym before it.
Entry const entries[] = {PINNING_COPY_SYMBOLS(PINNING_ENTRY)};
#undef PINNING_ENTRY
static_assert(std::size(entries) == symbols);

using tool::Dlsym;
using tool::next_dlsym;

/// The loaded object that contains an address.
void const* object_of(void const* address) noexcept {
  Dl_info info;
  return address != nullptr && dladdr(address, &info) != 0 ? info.dli_fbase : nullptr;
}

/// Whether an address is in this library or in libpinning, which get the driver's own functions.
bool is_ours(void const* address) noexcept {
  void const* const object = object_of(address);
  return object == object_of(entries) || object == object_of(reinterpret_cast<void*>(&make_staging));
}

Entry const* exported_as(char const* name) noexcept {
  for (Entry const& entry : entries) {
    if (std::strcmp(entry.exported, name) == 0) return &entry;
  }
  return nullptr;
}

void store(Entry const& entry, void* function) noexcept {
  auto& known = driver_functions[&entry - entries];
  if (known.load(std::memory_order_relaxed) == function) return;
  keep_library_of(function);
  known.store(function, std::memory_order_release);
}

/// Remember the driver's own function and return ours. If the driver looked it up by name, `function` is already ours.
void* remembered(Entry const& entry, void* function) noexcept {
  if (function != entry.function) store(entry, function);
  auto& process = tool::this_process;
  if (process.began && !process.copies.exchange(true, std::memory_order_relaxed)) {
    complain_of_settings();
    begin_watching();
  }
  return entry.function;
}

}  // namespace

void keep_library_of(void* function) noexcept {
  Dl_info info;
  if (dladdr(function, &info) != 0) dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

void* driver_symbol(char const* name) noexcept {
  void* const library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  void* const function = next_dlsym()(library, name);
  dlclose(library);
  return function;
}

void* driver_function(Symbol symbol) noexcept {
  if (void* const known = driver_functions[symbol].load(std::memory_order_acquire)) return known;
  Entry const& entry = entries[symbol];
  void *const drivers = driver_symbol(entry.exported), *const next = next_dlsym()(RTLD_NEXT, entry.exported);
  if (next != nullptr && next != drivers) {
    store(entry, next);
    return next;
  }
  if (drivers != nullptr) remembered(entry, drivers);
  return drivers;
}

void* in_place_of(void* function, char const* name, int version, bool per_thread) noexcept {
  for (Entry const& entry : entries) {
    bool const by_name = std::strcmp(entry.name, name) == 0 && entry.first <= version && version <= entry.last &&
                         (entry.per_thread == per_thread || !entry.has_stream());
    bool const by_version = std::strcmp(entry.exported, name) == 0 && std::strcmp(entry.exported, entry.name) != 0;
    if (by_name || by_version) return remembered(entry, function);
  }
  return function;
}

namespace {

/// The result of dlsym; if it is not answered here, libc's own is called by a jump.
struct Answer {
  void* function;
  std::uintptr_t is_answered;
};

/// `caller`: the address that dlsym returns to.
extern "C" [[gnu::visibility("hidden"), gnu::used]] Answer pinning_answer_dlsym(void* handle, char const* name,
                                                                                 void const* caller) noexcept {
  constexpr Answer libcs{};
  if (name == nullptr || name[0] != 'c' || name[1] != 'u') return libcs;
  Entry const* const entry = exported_as(name);
  if (entry == nullptr || is_ours(caller)) return libcs;
  void* const drivers = driver_symbol(name);
  if (drivers == nullptr) {
    // Without the driver these names must be as unknown as without this library.
    void* const function = handle == RTLD_NEXT ? nullptr : next_dlsym()(handle, name);
    if (handle != RTLD_NEXT && object_of(function) != object_of(entries)) return libcs;
    return {next_dlsym()(RTLD_NEXT, name), 1};
  }
  if (handle == RTLD_NEXT) return libcs;
  void* const function = next_dlsym()(handle, name);
  if (function == drivers || object_of(function) == object_of(entries)) return {remembered(*entry, drivers), 1};
  return libcs;
}

extern "C" [[gnu::visibility("hidden"), gnu::used]] Dlsym* pinning_next_dlsym() noexcept { return next_dlsym(); }

}  // namespace

}  // namespace pinning::tool::cuda

// On processors without CUDA, dlsym is not replaced.
#if defined(__x86_64__)
asm(R"(
  .text
  .globl dlsym
  .type dlsym, @function
dlsym:
  .cfi_startproc
  endbr64
  movq (%rsp), %rdx
  pushq %rdi
  .cfi_adjust_cfa_offset 8
  pushq %rsi
  .cfi_adjust_cfa_offset 8
  subq $8, %rsp
  .cfi_adjust_cfa_offset 8
  call pinning_answer_dlsym
  testq %rdx, %rdx
  jne 1f
  call pinning_next_dlsym
  movq %rax, %r11
  addq $8, %rsp
  .cfi_adjust_cfa_offset -8
  popq %rsi
  .cfi_adjust_cfa_offset -8
  popq %rdi
  .cfi_adjust_cfa_offset -8
  jmp *%r11
  .cfi_adjust_cfa_offset 24
1:
  addq $24, %rsp
  .cfi_adjust_cfa_offset -24
  ret
  .cfi_endproc
  .size dlsym, .-dlsym
)");
#elif defined(__aarch64__)
asm(R"(
  .text
  .globl dlsym
  .type dlsym, %function
dlsym:
  .cfi_startproc
  hint #34
  stp x29, x30, [sp, #-32]!
  .cfi_adjust_cfa_offset 32
  .cfi_rel_offset x29, 0
  .cfi_rel_offset x30, 8
  stp x0, x1, [sp, #16]
  mov x2, x30
  bl pinning_answer_dlsym
  cbnz x1, 1f
  bl pinning_next_dlsym
  mov x16, x0
  ldp x0, x1, [sp, #16]
  ldp x29, x30, [sp], #32
  br x16
1:
  ldp x29, x30, [sp], #32
  ret
  .cfi_endproc
  .size dlsym, .-dlsym
)");
#endif
