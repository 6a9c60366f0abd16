// SPDX-License-Identifier: Apache-2.0
// Locks: `Book::mutex` guards the assignment of slots, is taken last, and is held only to search a list.
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <mutex>
#include <new>
#include <pinning/process.hpp>
#include <pinning/status_page.hpp>
#include <string_view>
#include <utility>

#include "../base/descriptor.hpp"
#include "../base/file_identity.hpp"
#include "../base/setting.hpp"

// A leak sanitizer in the program, which looks for pointers in no memory but the program's data, stacks and heap.
extern "C" [[gnu::weak]] void __lsan_register_root_region(void const* start, std::size_t size);

namespace pinning {

namespace {

std::int64_t now() noexcept {
  timespec time{};
  clock_gettime(CLOCK_REALTIME, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

void put(char* to, std::size_t room, char const* text) noexcept {
  std::strncpy(to, text, room - 1);
  to[room - 1] = 0;
}

/// Empty memory that no other process sees.
void* anonymous(std::size_t size) noexcept {
  void* const at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) std::abort();  // not even some MiB of addresses are left
  return at;
}

/// Made without an allocation that could fail.
struct Book {
  explicit Book(void* room) noexcept : page(static_cast<StatusPage*>(room)) {}
  ~Book() { munmap(page, sizeof(StatusPage)); }
  static void* operator new(std::size_t size) noexcept {
    void* const at = anonymous(size);
    if (__lsan_register_root_region != nullptr) __lsan_register_root_region(at, size);
    return at;
  }
  static void* operator new(std::size_t, void* room) noexcept { return room; }
  static void operator delete(void* book) noexcept { munmap(book, sizeof(Book)); }

  StatusPage* const page;
  std::mutex mutex;
  bool shown = false;          // or that has been tried
  std::atomic<int> file = -1;  // by which other processes find it
  FileIdentity identity;       // as long as there is a file
  struct Locked {
    std::uint64_t size;
    StatusPage::Slot* slot;  // null if none was left
  };
  std::map<std::pair<Address, char const*>, Locked> locks;  // by start and device
  std::array<std::uint32_t, StatusPage::slots> free_slots;  // the first `free_count` of these
  std::uint32_t free_count = 0;
  std::uint32_t next = 0;  // this and all above are free too

  /// Show the page to other processes; what it has counted so far stays.
  void show() noexcept {
    if (std::exchange(shown, true)) return;
    static bool const is_on = is_switched_on("PINNING_STATUS", true);
    rlimit size{};  // of a file; one that is to grow beyond it would end the program by SIGXFSZ
    if (!is_on || (getrlimit(RLIMIT_FSIZE, &size) == 0 && size.rlim_cur < sizeof(StatusPage))) return;
    int const descriptor = above_streams(memfd_create("pinning-status", MFD_CLOEXEC));
    if (descriptor < 0) return;
    identity = FileIdentity(descriptor);
    file = descriptor;
    if (ftruncate(descriptor, sizeof(StatusPage)) == 0) {
      // At the same address, so that other threads can count bytes in it meanwhile; their counts are carried over,
      // except those of an instant.
      std::uint64_t moved[StatusPage::paths];
      for (std::uint32_t i = 0; i < StatusPage::paths; ++i) moved[i] = page->moved[i];
      if (mmap(page, sizeof(StatusPage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, descriptor, 0) != MAP_FAILED) {
        for (std::uint32_t i = 0; i < StatusPage::paths; ++i) page->moved[i] += moved[i];
        page->version = 3;
        process_budget().show();
        page->slot_count = StatusPage::slots;
        page->process = static_cast<std::uint64_t>(getpid());
        page->begun = now();
        page->magic.store(StatusPage::the_magic, std::memory_order_release);
        return;
      }
    }
    close(file.exchange(-1));
  }

  /// In a forked child: replace the parent's page by an empty one at the same address, without a name.
  void restart() noexcept {
    // Refused only to a process that may have no more addresses: then nothing can be locked in it either.
    mmap(page, sizeof(StatusPage), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (file >= 0 && identity.is_of(file)) close(file);
    static_assert(noexcept(new (this) Book(page)));
    new (this) Book(page);  // the old one may have been in the middle of any change, and is not destroyed
  }

  StatusPage::Slot* take() noexcept {
    if (free_count != 0) return &page->slot[free_slots[--free_count]];
    return next == StatusPage::slots ? nullptr : &page->slot[next++];
  }

  void enter(Address start, std::uint64_t size, char const* device) {
    Locked& lock = locks[{start, device}];
    lock = {size, take()};
    page->locked += size;
    ++page->calls;
    if (lock.slot == nullptr) {
      ++page->unlisted;
      return;
    }
    lock.slot->size = size;
    lock.slot->since = now();
    put(lock.slot->device, sizeof lock.slot->device, device);
    lock.slot->idle = false;
    lock.slot->owner[0] = lock.slot->site[0] = 0;
    lock.slot->start = start;
  }

  void leave(Address start, char const* device) noexcept {
    auto const at = locks.find({start, device});
    if (at == locks.end()) return;  // there was no memory to enter it
    Locked const lock = at->second;
    locks.erase(at);
    page->locked -= lock.size;
    if (lock.slot == nullptr) {
      --page->unlisted;
      return;
    }
    lock.slot->start = 0;
    free_slots[free_count++] = static_cast<std::uint32_t>(lock.slot - page->slot);
  }
};

Book& book() noexcept {
  return Only<Book, Subsystem::status>::get([] { return std::make_unique<Book>(anonymous(sizeof(StatusPage))); });
}

}  // namespace

StatusPage& status_page() noexcept { return *book().page; }

/// Never destroyed, nor are the maps that it counts.
Budget& process_budget() {
  return Only<Budget, Subsystem::budget>::get([] { return std::make_unique<Budget>(&status_page().budget); });
}

void show_status() noexcept {
  Book& ours = book();
  std::lock_guard const guard(ours.mutex);
  ours.show();
}

void describe_in_status(Address start, std::uint64_t size, char const* owner, char const* site) noexcept {
  Book& ours = book();
  std::lock_guard const guard(ours.mutex);
  for (auto at = ours.locks.lower_bound({start, nullptr}); at != ours.locks.end(); ++at) {
    if (at->first.first - start >= size) break;
    StatusPage::Slot* const slot = at->second.slot;
    if (slot == nullptr) continue;
    put(slot->owner, sizeof slot->owner, owner);
    put(slot->site, sizeof slot->site, site);
  }
}

Address ListedLocker::lock(Address ptr, std::uint64_t size, LockOptions options) {
  Address const device_ptr = calls_.lock(ptr, size, options);
  Book& ours = book();
  std::lock_guard const guard(ours.mutex);
  ours.show();
  try {
    ours.enter(ptr, size, device_);
  } catch (std::bad_alloc const&) {  // it is locked nevertheless
  }
  return device_ptr;
}

void ListedLocker::unlock(Address ptr) {
  calls_.unlock(ptr);
  leave(ptr);
}

/// Mark the slots of all devices of the vendor, which share registrations.
void ListedLocker::note_idle(Address ptr, std::uint64_t size, bool idle) noexcept {
  std::string_view const vendor(device_, std::strcspn(device_, ":"));
  Book& ours = book();
  std::lock_guard const guard(ours.mutex);
  for (auto at = ours.locks.lower_bound({ptr, nullptr}); at != ours.locks.end(); ++at) {
    auto const& [start, device] = at->first;
    if (start - ptr >= size) break;
    if (at->second.slot != nullptr && std::string_view(device, std::strcspn(device, ":")) == vendor) {
      at->second.slot->idle = idle;
    }
  }
}

void ListedLocker::forget(Address ptr, Span gone) {
  calls_.forget(ptr, gone);
  leave(ptr);
}

void ListedLocker::leave(Address ptr) noexcept {
  Book& ours = book();
  std::lock_guard const guard(ours.mutex);
  ours.leave(ptr, device_);
}

}  // namespace pinning
