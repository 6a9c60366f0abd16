// SPDX-License-Identifier: Apache-2.0
// The functions by which a program frees memory, or gets other pages at the same addresses. If this library is loaded
// before libc, by LD_PRELOAD or link order, the program calls these. They first unlock the memory: otherwise a device
// would silently continue to use the old pages. They also inform the maps of the process, so that locks end with their
// memory even if the kernel does not report that.
//
// libc's own calls, such as those by which `free` unmaps, do not pass through here. So `free` itself is hooked, and so
// are the functions that create threads, whose stacks libc unmaps.
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <threads.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <new>
#include <pinning/watcher.hpp>
#include <utility>

#include "hooks.hpp"
#include "inside.hpp"
#include "next_function.hpp"
#include "stacks.hpp"
#include "this_process.hpp"
#include "uncancelled.hpp"

namespace {

using pinning::tool::Address;
using pinning::tool::Inside;
using pinning::tool::MemoryListener;
using pinning::tool::next_function;
using pinning::tool::Range;
using pinning::tool::range_of;
using pinning::tool::Stack;
using pinning::tool::this_process;
using pinning::tool::Uncancelled;

/// The functions that the program would call without this library. Looked up when this library is loaded, or at the
/// first call before that: the look-up itself frees nothing, unless it fails.
struct Next {
  decltype(&::free) free = nullptr;
  decltype(&::realloc) realloc = nullptr;
  decltype(&::malloc_usable_size) size_of_block = nullptr;  // of the allocator that has `free`; null if it lacks one
  decltype(&::munmap) munmap = nullptr;
  void* (*mmap)(void*, size_t, int, int, int, off_t) = nullptr;
  void* (*mremap)(void*, size_t, size_t, int, ...) = nullptr;
  decltype(&::madvise) madvise = nullptr;
  ssize_t (*process_madvise)(int, iovec const*, size_t, int, unsigned) = nullptr;
  decltype(&::remap_file_pages) remap_file_pages = nullptr;
  decltype(&::shmat) shmat = nullptr;
  decltype(&::shmdt) shmdt = nullptr;
  decltype(&::syscall) syscall = nullptr;
  int (*prctl)(int, ...) = nullptr;
  decltype(&::pthread_create) pthread_create = nullptr;
  decltype(&::thrd_create) thrd_create = nullptr;
  decltype(&::brk) brk = nullptr;
  decltype(&::sbrk) sbrk = nullptr;
};
Next next;
thread_local bool looking_up = false;
thread_local void* freed_early = nullptr;
bool starts_are_hidden = false;  // see `look_for_a_runtime`

template <class Function>
void find(char const* name, Function*& function) {
  function = next_function<Function>(name);
}

/// The loaded object that contains an address, or null.
link_map const* object_of(void* ptr) noexcept {
  Dl_info info;
  void* object = nullptr;
  return dladdr1(ptr, &info, &object, RTLD_DL_LINKMAP) != 0 ? static_cast<link_map const*>(object) : nullptr;
}

/// If the allocator lacks `malloc_usable_size`, the one found is libc's, which does not know its blocks.
void find_size_of_block() {
  decltype(next.size_of_block) found = nullptr;
  find("malloc_usable_size", found);
  auto const object = [](auto* function) { return object_of(reinterpret_cast<void*>(function)); };
  if (found != nullptr && object(found) == object(next.free)) next.size_of_block = found;
}

/// The first `find` frees the text of the thread's last error of dlsym or dlopen, before `free` is found: that is done at
/// the end, unless the caller, which was called for this text, is about to.
void look_up(void const* callers = nullptr) {
  if (std::exchange(looking_up, true)) return;
  find("free", next.free);
  find_size_of_block();
  find("realloc", next.realloc);
  find("munmap", next.munmap);
  find("mmap", next.mmap);
  find("mremap", next.mremap);
  find("madvise", next.madvise);
  find("process_madvise", next.process_madvise);
  find("remap_file_pages", next.remap_file_pages);
  find("shmat", next.shmat);
  find("shmdt", next.shmdt);
  find("syscall", next.syscall);
  find("prctl", next.prctl);
  find("pthread_create", next.pthread_create);
  find("thrd_create", next.thrd_create);
  find("brk", next.brk);
  find("sbrk", next.sbrk);
  looking_up = false;
  void* const text = std::exchange(freed_early, nullptr);
  if (text != callers) next.free(text);
}

/// The watcher of the maps; null until this library is loaded, if it was not loaded first, with PINNING_WATCH=off, and in
/// a forked child until the watcher has begun anew.
pinning::Watcher* watcher_of_maps() noexcept { return this_process.watcher.load(std::memory_order_acquire); }

[[gnu::constructor]] void subscribe() {
  if (!pinning::tool::frees_are_seen()) return;
  pinning::Watcher& watcher = pinning::process_watcher();
  watcher.hear_of_calls();
  if (watcher.hears_of_calls()) pinning::tool::inform_watcher(watcher);
}

Next const& libc() {
  if (next.sbrk == nullptr) [[unlikely]] look_up();
  return next;
}

[[gnu::constructor]] void begin() { libc(); }

MemoryListener* listener() noexcept { return this_process.listener.load(std::memory_order_acquire); }

void notify(MemoryListener& listener, Range const& range) noexcept {
  if (Inside::now()) return;
  int const error = errno;
  Inside const inside;
  try {
    listener.freed(range);
  } catch (...) {  // out of memory: locks stay, as without this library
  }
  errno = error;
}

void notify_watcher(pinning::Watcher& watcher, Range const& range) noexcept {
  if (Inside::now()) return;
  int const error = errno;
  watcher.invalidate(range.start, range.size());
  errno = error;
}

void notify_listener(Range const& range) noexcept {
  MemoryListener* const told = listener();
  if (told != nullptr && told->may_meet(range)) notify(*told, range);
}

Address page() noexcept { return static_cast<Address>(getpagesize()); }

/// The range is about to go: notify the listener, and the watcher of all pages that it touches.
void notify_all(Range const& range) noexcept {
  notify_listener(range);
  pinning::Watcher* const watcher = watcher_of_maps();
  if (watcher == nullptr || range.empty()) return;
  Address const last = (range.end - 1) | (page() - 1);
  Range const pages{range.start & -page(), last == ~Address{0} ? last : last + 1};
  if (watcher->may_meet(pages.start, pages.end)) notify_watcher(*watcher, pages);
}

bool on_a_page(void const* ptr) noexcept { return reinterpret_cast<Address>(ptr) % page() == 0; }

/// Pages are about to go. If `ptr` is not the start of a page, the kernel refuses the call, and if `size` is 0, the
/// call changes nothing: then no lock ends. (What only the kernel can refuse, such as a file that is not open, ends them.)
void pages_go(void const* ptr, size_t size) noexcept {
  if (size != 0 && on_a_page(ptr)) notify_all(range_of(ptr, size));
}

void mapped_over(void const* ptr, size_t size, int flags, off_t offset) noexcept {
  if ((flags & MAP_FIXED) != 0 && offset % getpagesize() == 0) pages_go(ptr, size);
}

void remapped(void const* ptr, size_t size, size_t new_size, int flags, void const* target) noexcept {
  bool const moves = (flags & MREMAP_MAYMOVE) != 0, fixed = (flags & MREMAP_FIXED) != 0;
  bool const leaves = (flags & MREMAP_DONTUNMAP) != 0;
  bool const refused = !on_a_page(ptr) || new_size == 0 || ((fixed || leaves) && !moves) || (leaves && new_size != size) ||
                       (fixed && (!on_a_page(target) || range_of(ptr, size).meets(range_of(target, new_size))));
  if (refused) return;
  bool const stays = !moves || (new_size <= size && flags == MREMAP_MAYMOVE);
  size_t const kept = stays ? (new_size + page() - 1) & -page() : 0;
  if (kept < size) pages_go(static_cast<char const*>(ptr) + kept, size - kept);
  if (fixed) pages_go(target, new_size);
}

/// Whether anything was ever locked at or above `start`. Fast, and without a system call.
bool listener_meets(MemoryListener const* told, Address start) noexcept {
  return told != nullptr && told->may_meet({start, ~Address{0}});
}
bool maps_meet(pinning::Watcher const* watcher, Address start) noexcept {
  return watcher != nullptr && watcher->may_meet(start, ~Address{0});
}

/// A program that locks nothing must make no system call that it would not make without this library.
bool anything_is_locked() noexcept {
  return listener_meets(listener(), 0) || maps_meet(watcher_of_maps(), 0);
}

/// Query the allocator only if anything was ever locked at or above the block's first byte. If it does not report the
/// block's size, only that byte counts.
void block_goes(void* ptr) noexcept {
  MemoryListener* const told = listener();
  pinning::Watcher* const watcher = watcher_of_maps();
  auto const start = reinterpret_cast<Address>(ptr);
  bool const of_listener = listener_meets(told, start), of_maps = maps_meet(watcher, start);
  if ((!of_listener && !of_maps) || ptr == nullptr) return;
  Range const block = range_of(ptr, next.size_of_block != nullptr ? next.size_of_block(ptr) : 1);
  if (of_listener && told->may_meet(block)) [[unlikely]] notify(*told, block);
  if (of_maps && watcher->may_meet(block.start, block.end)) [[unlikely]] notify_watcher(*watcher, block);
}

/// The first mappings from `from` on, without a gap, that shmdt of `start` would unmap; empty if there are none. Locks
/// divide a segment into several mappings, and so do other calls.
Range attached_at(Address start, Address from) {
  Inside const inside;
  Uncancelled const uncancelled;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> const maps(std::fopen("/proc/self/maps", "re"), std::fclose);
  if (!maps) return from == start ? Range{start, start + 1} : Range{};
  Range found;
  char line[512];
  while (std::fgets(line, sizeof line, maps.get()) != nullptr) {
    Range next;
    std::uintptr_t offset = 0;
    if (std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %*s %" SCNxPTR, &next.start, &next.end, &offset) != 3) continue;
    bool const its = next.end > from && next.start >= start && next.start - start == offset;
    if (its && (found.empty() || next.start == found.end)) {
      found = {found.empty() ? std::max(next.start, from) : found.start, next.end};
    } else if (!found.empty()) {
      break;
    }
  }
  return found;
}

/// Whether the advice gives pages back.
bool discards(int advice) noexcept {
  switch (advice) {
    case MADV_DONTNEED:
    case MADV_FREE:
    case MADV_REMOVE:
    case 24:   // MADV_DONTNEED_LOCKED
    case 102:  // MADV_GUARD_INSTALL
      return true;
    default:
      return false;
  }
}

/// Whether it does, or is refused for locked pages, which would not be locked without this library.
bool takes_pages(int advice) noexcept {
  constexpr int cold = 20, pageout = 21;  // MADV_COLD, MADV_PAGEOUT
  return discards(advice) || advice == cold || advice == pageout;
}

void advised(void* ptr, size_t size, int advice) noexcept {
  if (discards(advice)) return pages_go(ptr, size);
  if (takes_pages(advice) && size != 0 && on_a_page(ptr)) notify_listener(range_of(ptr, size));
}

/// Whether a pidfd refers to this process.
bool is_self(int process) noexcept {
  constexpr int self_thread = -10000, self = -10001;  // PIDFD_SELF_THREAD, PIDFD_SELF
  if (process < 0) return process == self || process == self_thread;
  char line[64];
  std::snprintf(line, sizeof line, "/proc/self/fdinfo/%d", process);
  Uncancelled const uncancelled;
  int const file = open(line, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  char text[512];
  ssize_t const length = read(file, text, sizeof text - 1);
  close(file);
  text[std::max<ssize_t>(length, 0)] = 0;
  char const* const found = std::strstr(text, "\nPid:\t");
  return found != nullptr && std::atoi(found + 6) == getpid();
}

/// Read the ranges as the kernel would: it refuses all if part of the list is not mapped. Allocates nothing, because
/// the caller may be an allocator.
template <class Look>
bool each_range(iovec const* ranges, size_t count, Look&& look) noexcept {
  iovec some[32];
  for (size_t done = 0; done < count;) {
    size_t const now = std::min(count - done, std::size(some));
    iovec const to{some, now * sizeof *some}, from{const_cast<iovec*>(ranges) + done, to.iov_len};
    if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) != static_cast<ssize_t>(to.iov_len)) return false;
    for (size_t i = 0; i < now; ++i) look(some[i]);
    done += now;
  }
  return true;
}

void advised(int process, iovec const* ranges, size_t count, int advice, unsigned flags) noexcept {
  if (!anything_is_locked() || !takes_pages(advice) || count > IOV_MAX || flags != 0) return;
  int const error = errno;
  if (each_range(ranges, count, [](iovec const&) {}) && is_self(process)) {
    each_range(ranges, count, [&](iovec const& range) { advised(range.iov_base, range.iov_len, advice); });
  }
  errno = error;
}

void shared_memory_comes(int id, void const* ptr, int flags) noexcept {
  shmid_ds facts;
  if (!anything_is_locked() || (flags & SHM_REMAP) == 0 || shmctl(id, IPC_STAT, &facts) != 0) return;
  notify_all(range_of(ptr, (facts.shm_segsz + page() - 1) / page() * page()));
}

void shared_memory_goes(void const* ptr) noexcept {
  if (!anything_is_locked() || Inside::now()) return;
  auto const start = reinterpret_cast<Address>(ptr);
  for (Range gone = attached_at(start, start); !gone.empty(); gone = attached_at(start, gone.end)) notify_all(gone);
}

/// The heap is about to end at `end` instead of `before`; that page stays. With 0 the call only asks where it ends.
void heap_ends(Address end, Address before) noexcept {
  Address const gone = (end + (page() - 1)) & -page();
  if (end != 0 && gone < before) notify_all({gone, before});
}

/// Whether the caller is a child that has our memory until it executes a program: what it forbids itself is not ours.
/// Not asked by a system call that may be forbidden.
bool is_vforked() noexcept {
  return this_process.sandboxed == 0 && this_process.id != 0 && this_process.id != getpid();
}

/// Make a call that may forbid the program system calls. This library makes none from before the call on, as it may
/// begin to hold for all threads, unless it fails.
template <class Call>
auto forbidding(bool forbids, Call&& call) noexcept {
  forbids = forbids && !is_vforked();
  if (forbids) ++this_process.sandboxed;
  auto const result = call();
  if (forbids && result == -1) --this_process.sandboxed;
  return result;
}

/// Whether a symbol that the loader found is not a definition: a program that is linked to a fixed address and takes
/// the address of a function has a stub, which is the function's address for all libraries. Calls skip it.
bool is_stub(void* ptr) noexcept {
  Dl_info info;
  void* symbol = nullptr;
  if (dladdr1(ptr, &info, &symbol, RTLD_DL_SYMENT) == 0 || symbol == nullptr) return false;
  return static_cast<ElfW(Sym) const*>(symbol)->st_shndx == SHN_UNDEF;
}

/// The object whose function the program calls by this name; null if unknown.
link_map const* called(char const* name) noexcept {
  void* const found = dlsym(RTLD_DEFAULT, name);
  if (found == nullptr) return nullptr;
  link_map const* const first = object_of(found);
  if (first == nullptr || !is_stub(found)) return first;
  for (link_map const* each = first->l_next; each != nullptr; each = each->l_next) {
    void* const handle = dlopen(each->l_name, RTLD_LAZY | RTLD_NOLOAD);
    if (handle == nullptr) continue;
    void* const theirs = dlsym(handle, name);  // its own, or that of a dependency
    dlclose(handle);
    if (theirs != nullptr && object_of(theirs) == each) return each;
  }
  return nullptr;
}

/// A program that defines these itself, as a static ThreadSanitizer does, has to register a thread before it calls them.
[[gnu::constructor]] void look_for_a_runtime() {
  link_map const* const owner = called("pthread_mutex_lock");
  starts_are_hidden = owner != nullptr && owner->l_prev == nullptr;
}

/// The function that a new thread runs, and its stack.
template <class Result>
struct Start : Stack {
  Start(pthread_attr_t const* attributes, Result (*routine)(void*), void* argument) noexcept
      : Stack(attributes), routine(routine), argument(argument) {}

  static Result run(void* given) {
    auto& start = *static_cast<Start*>(given);
    start.begin();
    return start.routine(start.argument);
  }

  Result (*routine)(void*);
  void* argument;
};

}  // namespace

bool pinning::tool::frees_are_seen() noexcept {
  link_map const* const self = object_of(reinterpret_cast<void*>(&look_up));
  return self != nullptr && called("free") == self && called("munmap") == self;
}

#pragma GCC visibility push(default)
extern "C" {

void free(void* ptr) noexcept {
  block_goes(ptr);
  if (next.free == nullptr) [[unlikely]] look_up(ptr);
  next.free != nullptr ? next.free(ptr) : void(freed_early = ptr);
}

void* realloc(void* ptr, size_t size) noexcept {
  block_goes(ptr);
  return libc().realloc(ptr, size);
}

int munmap(void* ptr, size_t size) noexcept {
  pages_go(ptr, size);
  return libc().munmap(ptr, size);
}

void* mmap(void* ptr, size_t size, int protection, int flags, int file, off_t offset) noexcept {
  mapped_over(ptr, size, flags, offset);
  return libc().mmap(ptr, size, protection, flags, file, offset);
}

void* mmap64(void* ptr, size_t size, int protection, int flags, int file, off64_t offset) noexcept {
  return mmap(ptr, size, protection, flags, file, offset);
}

void* mremap(void* ptr, size_t size, size_t new_size, int flags, ...) noexcept {
  va_list arguments;
  va_start(arguments, flags);
  void* const target = va_arg(arguments, void*);  // the kernel also reads it with MREMAP_DONTUNMAP
  va_end(arguments);
  remapped(ptr, size, new_size, flags, target);
  return libc().mremap(ptr, size, new_size, flags, target);
}

int madvise(void* ptr, size_t size, int advice) noexcept {
  advised(ptr, size, advice);
  return libc().madvise(ptr, size, advice);
}

ssize_t process_madvise(int process, iovec const* ranges, size_t count, int advice, unsigned flags) noexcept {
  advised(process, ranges, count, advice, flags);
  if (libc().process_madvise != nullptr) return libc().process_madvise(process, ranges, count, advice, flags);
  return libc().syscall(SYS_process_madvise, process, ranges, count, advice, flags);
}

int remap_file_pages(void* ptr, size_t size, int protection, size_t offset, int flags) noexcept {
  notify_all(range_of(ptr, size));
  return libc().remap_file_pages(ptr, size, protection, offset, flags);
}

void* shmat(int id, void const* ptr, int flags) noexcept {
  shared_memory_comes(id, ptr, flags);
  return libc().shmat(id, ptr, flags);
}

int shmdt(void const* ptr) noexcept {
  shared_memory_goes(ptr);
  return libc().shmdt(ptr);
}

int brk(void* end) noexcept {
  heap_ends(reinterpret_cast<Address>(end), reinterpret_cast<Address>(libc().sbrk(0)));
  return libc().brk(end);
}

void* sbrk(intptr_t change) noexcept {
  auto const now = reinterpret_cast<Address>(libc().sbrk(0));
  heap_ends(now + static_cast<Address>(change), now);
  return libc().sbrk(change);
}

int prctl(int option, ...) noexcept {
  va_list arguments;
  va_start(arguments, option);
  unsigned long given[4];
  for (unsigned long& each : given) each = va_arg(arguments, unsigned long);
  va_end(arguments);
  return forbidding(option == PR_SET_SECCOMP,
                    [&] { return libc().prctl(option, given[0], given[1], given[2], given[3]); });
}

/// The same calls by number.
long syscall(long number, ...) noexcept {
  va_list arguments;
  va_start(arguments, number);
  long given[6];
  for (long& each : given) each = va_arg(arguments, long);
  va_end(arguments);
  auto* const ptr = reinterpret_cast<void*>(given[0]);
  auto const size = static_cast<size_t>(given[1]);
  bool forbids = false;
  switch (number) {
    case SYS_munmap:
      pages_go(ptr, size);
      break;
#ifdef SYS_mmap
    case SYS_mmap:
      mapped_over(ptr, size, static_cast<int>(given[3]), given[5]);
      break;
#endif
    case SYS_mremap:
      remapped(ptr, size, static_cast<size_t>(given[2]), static_cast<int>(given[3]), reinterpret_cast<void*>(given[4]));
      break;
    case SYS_madvise:
      advised(ptr, size, static_cast<int>(given[2]));
      break;
    case SYS_process_madvise:
      advised(static_cast<int>(given[0]), reinterpret_cast<iovec const*>(given[1]), static_cast<size_t>(given[2]),
              static_cast<int>(given[3]), static_cast<unsigned>(given[4]));
      break;
    case SYS_seccomp:
      forbids = static_cast<unsigned>(given[0]) <= SECCOMP_SET_MODE_FILTER;  // the other operations only ask
      break;
    case SYS_prctl:
      forbids = static_cast<int>(given[0]) == PR_SET_SECCOMP;
      break;
    case SYS_remap_file_pages:
      notify_all(range_of(ptr, size));
      break;
    case SYS_shmat:
      shared_memory_comes(static_cast<int>(given[0]), reinterpret_cast<void*>(given[1]), static_cast<int>(given[2]));
      break;
    case SYS_shmdt:
      shared_memory_goes(ptr);
      break;
    case SYS_brk:
      heap_ends(reinterpret_cast<Address>(ptr), reinterpret_cast<Address>(libc().sbrk(0)));
      break;
    default:
      break;
  }
  return forbidding(
      forbids, [&] { return libc().syscall(number, given[0], given[1], given[2], given[3], given[4], given[5]); });
}

int pthread_create(pthread_t* thread, pthread_attr_t const* attributes, void* (*routine)(void*),
                   void* argument) noexcept {
  if (starts_are_hidden) return libc().pthread_create(thread, attributes, routine, argument);
  auto* const start = new (std::nothrow) Start<void*>(attributes, routine, argument);
  if (start == nullptr) return EAGAIN;
  int const error = libc().pthread_create(thread, attributes, Start<void*>::run, start);
  if (error != 0) delete start;
  return error;
}

int thrd_create(thrd_t* thread, thrd_start_t routine, void* argument) {
  if (starts_are_hidden) return libc().thrd_create(thread, routine, argument);
  auto* const start = new (std::nothrow) Start<int>(nullptr, routine, argument);
  if (start == nullptr) return thrd_nomem;
  int const error = libc().thrd_create(thread, Start<int>::run, start);
  if (error != thrd_success) delete start;
  return error;
}
}
#pragma GCC visibility pop
