// SPDX-License-Identifier: Apache-2.0
#include "failure.hpp"

#include <cstring>
#include <new>
#include <pinning/vendor.hpp>
#include <utility>

namespace pinning {

namespace {

/// The text of a thread's last error. Allocated at the first one, because thread-local memory is taken from every
/// thread's stack. A thread's destructors run before the last functions of a program do, which allocate it anew.
class LastError {
 public:
  ~LastError() { delete[] std::exchange(text_, nullptr); }

  /// Without memory it is the meaning of the status.
  void set(pinning_status status, char const* text) noexcept {
    if (text_ == nullptr) text_ = new (std::nothrow) char[room];
    if (text_ == nullptr) {
      said_ = pinning_error_string(status);
      return;
    }
    std::size_t const length = strnlen(text, room - 1);
    std::memmove(text_, text, length);
    text_[length] = '\0';
    said_ = nullptr;
  }
  char const* get() const noexcept { return said_ != nullptr ? said_ : text_ != nullptr ? text_ : ""; }

 private:
  static constexpr std::size_t room = 1024;
  char* text_ = nullptr;
  char const* said_ = nullptr;
};

constinit thread_local LastError last_error;
constinit thread_local unsigned failed = 0;

}  // namespace

pinning_status fail(pinning_status status, char const* text) noexcept {
  last_error.set(status, text != nullptr ? text : "");
  ++failed;
  return status;
}

unsigned failures() noexcept { return failed; }

pinning_status failure() noexcept {
  try {
    throw;
  } catch (CError const& error) {
    return fail(error.status, error.what());
  } catch (PartialOverlap const& error) {
    return fail(PINNING_PARTIAL_OVERLAP, error.what());
  } catch (InvalidRange const& error) {
    return fail(PINNING_INVALID_RANGE, error.what());
  } catch (InvalidArgument const& error) {
    return fail(PINNING_INVALID_ARGUMENT, error.what());
  } catch (GraphCapture const& error) {
    return fail(PINNING_INVALID_ARGUMENT, error.what());
  } catch (NotLocked const& error) {
    return fail(PINNING_NOT_LOCKED, error.what());
  } catch (StillLocked const& error) {
    return fail(PINNING_STILL_LOCKED, error.what());
  } catch (AlreadyPinned const& error) {
    return fail(PINNING_ALREADY_PINNED, error.what());
  } catch (LockLimit const& error) {
    return fail(PINNING_LOCK_LIMIT, error.what());
  } catch (VendorError const& error) {
    return fail(PINNING_VENDOR_ERROR, error.what());
  } catch (Unavailable const& error) {
    return fail(PINNING_UNAVAILABLE, error.what());
  } catch (Unsupported const& error) {
    return fail(PINNING_UNAVAILABLE, error.what());
  } catch (std::bad_alloc const&) {
    return fail(PINNING_NO_MEMORY, "the host is out of memory");
  } catch (std::exception const& error) {
    return fail(PINNING_UNKNOWN_ERROR, error.what());
  } catch (...) {
    return fail(PINNING_UNKNOWN_ERROR, "an unknown exception");
  }
}

}  // namespace pinning

char const* pinning_last_error() noexcept { return pinning::last_error.get(); }

pinning_status pinning_fail(pinning_status status, char const* text) noexcept { return pinning::fail(status, text); }

char const* pinning_error_string(pinning_status status) noexcept {
  switch (status) {
    case PINNING_OK: return "all is well";
    case PINNING_INVALID_ARGUMENT: return "an argument is wrong";
    case PINNING_INVALID_RANGE: return "a range, or a number of bytes, is wrong";
    case PINNING_PARTIAL_OVERLAP: return "the range overlaps a locked region without lying inside it";
    case PINNING_NOT_LOCKED: return "no locked region is there";
    case PINNING_STILL_LOCKED: return "what is locked there forbids it";
    case PINNING_ALREADY_PINNED: return "someone else has pinned some of this memory";
    case PINNING_LOCK_LIMIT: return "it would exceed a limit of this machine";
    case PINNING_VENDOR_ERROR: return "a vendor's call failed";
    case PINNING_UNAVAILABLE: return "a library, a driver, a device or an interpreter is missing";
    case PINNING_NO_MEMORY: return "the host is out of memory";
    case PINNING_INTERRUPTED: return "interrupted";
    case PINNING_UNKNOWN_ERROR: return "an error of unknown kind";
  }
  return "no status of this library";
}
