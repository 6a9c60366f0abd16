// SPDX-License-Identifier: Apache-2.0
#include "ur_registrations.hpp"

#include <unistd.h>

#include <algorithm>

#include "../../base/mappings.hpp"

namespace pinning::ur {

namespace {

Address const page = static_cast<Address>(sysconf(_SC_PAGESIZE));

bool are_writable(Pages pages) {
  return std::ranges::all_of(mappings(pages.start, pages.end - pages.start), &Mapping::writable);
}

/// "there is no memory at 0x7f...", or empty if all pages are mapped.
std::string hole_in(Pages pages) {
  std::uint64_t const size = pages.end - pages.start;
  auto const hole = gap(pages.start, size, mappings(pages.start, size));
  if (!hole) return "";
  char text[48];
  std::snprintf(text, sizeof text, "there is no memory at 0x%llx", static_cast<unsigned long long>(*hole));
  return text;
}

/// The parts of `pages` outside the ranges `taken`, which are ascending and disjoint.
std::vector<Pages> outside(Pages pages, std::vector<Pages> const& taken) {
  std::vector<Pages> parts;
  for (auto const& each : taken) {
    if (pages.start < each.start) parts.push_back({pages.start, each.start});
    pages.start = each.end;
  }
  if (pages.start < pages.end) parts.push_back(pages);
  return parts;
}

/// The parts of `pages` inside the `ranges`, ascending; adjacent ones are merged.
std::vector<Pages> inside(Pages pages, std::vector<Pages> const& ranges) {
  std::vector<Pages> cut, parts;
  for (auto const& each : ranges) {
    if (each.meets(pages)) cut.push_back({std::max(each.start, pages.start), std::min(each.end, pages.end)});
  }
  std::ranges::sort(cut, {}, &Pages::start);
  for (auto const& each : cut) {
    if (!parts.empty() && each.start <= parts.back().end) {
      parts.back().end = std::max(parts.back().end, each.end);
    } else {
      parts.push_back(each);
    }
  }
  return parts;
}

void forget_one(std::vector<Pages>& users, Pages user) {
  if (auto const entry = std::ranges::find(users, user); entry != users.end()) users.erase(entry);
}

}  // namespace

Pages Pages::of(Address ptr, std::uint64_t size) noexcept { return {ptr & -page, ((ptr + (size - 1)) & -page) + page}; }

/// While it exists, no other thread changes these pages, or any registration that overlaps them.
class Registrations::Alone {
 public:
  Alone(Registrations& all, Pages pages) : all_(all) {
    std::unique_lock guard(all_.mutex_);
    all_.changed_.wait(guard, [&] {
      span_ = all_.span(pages);
      return std::ranges::none_of(all_.changing_, [&](Pages const& other) { return other.meets(span_); });
    });
    all_.changing_.push_back(span_);
  }
  ~Alone() {
    std::lock_guard const guard(all_.mutex_);
    forget_one(all_.changing_, span_);
    all_.changed_.notify_all();
  }
  Alone(Alone const&) = delete;

 private:
  Registrations& all_;
  Pages span_{};
};

void Registrations::lock(Pages pages, std::function<void(std::vector<Pages> const&)> const& check, bool writable) {
  Loader const& loader = Loader::get();
  Alone const alone(*this, pages);
  auto const neighbours = touching(pages);
  std::vector<Pages> taken;
  for (auto* const neighbour : neighbours) {
    taken.push_back(neighbour->pages);
    neighbour->users.reserve(neighbour->users.size() + 1);
  }
  auto const gaps = outside(pages, taken);
  check(gaps);  // here, where no thread's concurrent registration can be mistaken for another owner's
  std::vector<Registration*> made;
  made.reserve(gaps.size());
  try {
    for (auto const& each : gaps) made.push_back(&add(loader, each, {pages}, writable));
  } catch (...) {
    for (auto* const registration : made) {
      try {
        remove(loader, *registration);
      } catch (VendorError const&) {  // only the first error is reported
      }
    }
    throw;
  }
  for (auto* const neighbour : neighbours) neighbour->users.push_back(pages);
}

void Registrations::unlock(Pages pages) {
  Loader const& loader = Loader::get();
  Alone const alone(*this, pages);
  std::vector<std::function<void()>> undo;
  try {
    for (auto* const registration : touching(pages)) release(loader, *registration, pages, undo);
  } catch (...) {
    for (; !undo.empty(); undo.pop_back()) {
      try {
        undo.back()();
      } catch (std::exception const&) {  // only the first error is reported
      }
    }
    throw;
  }
}

bool Registrations::holds(Address address) {
  std::lock_guard const guard(mutex_);
  Pages const at{address, address + 1};
  return !overlapping(at).empty() || std::ranges::any_of(changing_, [&](Pages const& each) { return each.meets(at); });
}

void Registrations::release(Loader const& loader, Registration& registration, Pages pages,
                            std::vector<std::function<void()>>& undo) {
  auto users = registration.users;
  forget_one(users, pages);
  auto const needed = inside(registration.pages, users);
  if (needed == std::vector{registration.pages}) {
    undo.push_back([&registration, pages] { registration.users.push_back(pages); });
    forget_one(registration.users, pages);
    return;
  }
  Registration const before = registration;
  undo.push_back([this, &loader, before] { add(loader, before.pages, before.users, false); });
  try {
    remove(loader, registration);
  } catch (...) {
    undo.pop_back();
    throw;
  }
  for (auto const& part : needed) {
    std::vector<Pages> its;
    std::ranges::copy_if(users, std::back_inserter(its), [&](Pages const& user) { return user.meets(part); });
    Registration& kept = add(loader, part, std::move(its), false);
    undo.push_back([this, &loader, &kept] { remove(loader, kept); });
  }
}

/// Prefers registering, which reports failures: an import may do nothing and report success.
Registrations::Registration& Registrations::add(Loader const& loader, Pages pages, std::vector<Pages> users,
                                                bool writable) {
  void* const context = context_.handle(loader);
  std::map<Address, Registration> fresh;  // made before the call, so that nothing can fail after it
  Registration& registration = fresh.try_emplace(pages.start, Registration{pages, std::move(users), false}).first->second;
  std::string missing;
  int code = UR_RESULT_ERROR_UNSUPPORTED_FEATURE;
  if (!loader.urUSMHostAllocRegisterExp) {
    missing = "this release of the loader has no urUSMHostAllocRegisterExp";
  } else {
    Properties const read_only{UR_STRUCTURE_TYPE_EXP_USM_HOST_ALLOC_REGISTER_PROPERTIES, nullptr,
                               UR_EXP_USM_HOST_ALLOC_REGISTER_FLAG_READ_ONLY};
    Properties const* const options = writable || are_writable(pages) ? nullptr : &read_only;
    code = loader.urUSMHostAllocRegisterExp(context, pointer(pages.start), pages.end - pages.start, options);
    if (code != UR_RESULT_ERROR_UNSUPPORTED_FEATURE) {
      loader.check_code(loader.urUSMHostAllocRegisterExp, code, code != 0 ? hole_in(pages) : "");
    }
    missing = "its adapter has no urUSMHostAllocRegisterExp";
  }
  if (code != 0) {
    if (auto const hole = hole_in(pages); !hole.empty()) {  // an import would not report it
      throw InvalidRange(describe(pages.start, pages.end - pages.start) + " cannot be locked: " + hole);
    }
    registration.imported = true;
    code = loader.urUSMImportExp(context, pointer(pages.start), pages.end - pages.start);
    if (code == UR_RESULT_ERROR_UNSUPPORTED_FEATURE) {
      throw VendorError(loader.failed("urUSMImportExp", code,
                                      "host memory cannot be locked for " + context_.adapter + " devices: " + missing +
                                          " and its adapter has no urUSMImportExp; host:0 locks memory without a "
                                          "device"));
    }
    loader.check_code(loader.urUSMImportExp, code);
  }
  std::lock_guard const guard(mutex_);
  registered_.merge(fresh);
  return registration;
}

void Registrations::remove(Loader const& loader, Registration const& registration) {
  void* const context = context_.handle(loader);
  void* const start = pointer(registration.pages.start);
  if (registration.imported) {
    loader.check(loader.urUSMReleaseExp, context, start);
  } else {
    loader.check(loader.urUSMHostAllocUnregisterExp, context, start);
  }
  std::lock_guard const guard(mutex_);
  registered_.erase(registration.pages.start);
}

std::vector<Registrations::Registration*> Registrations::touching(Pages pages) {
  std::lock_guard const guard(mutex_);
  return overlapping(pages);
}

std::vector<Registrations::Registration*> Registrations::overlapping(Pages pages) {
  std::vector<Registration*> found;
  auto each = registered_.upper_bound(pages.start);
  if (each != registered_.begin() && std::prev(each)->second.pages.end > pages.start) --each;
  for (; each != registered_.end() && each->first < pages.end; ++each) found.push_back(&each->second);
  return found;
}

Pages Registrations::span(Pages pages) {
  auto const found = overlapping(pages);
  if (found.empty()) return pages;
  return {std::min(pages.start, found.front()->pages.start), std::max(pages.end, found.back()->pages.end)};
}

}  // namespace pinning::ur
