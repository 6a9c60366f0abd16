// SPDX-License-Identifier: Apache-2.0
#include "output.hpp"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <mutex>
#include <set>
#include <system_error>
#include <utility>

#include "uncancelled.hpp"

namespace pinning::tool {

namespace {

constexpr int lowest = 100;  // programs expect the first free numbers for their own files

/// "trace.json" as "trace.1234.json".
std::string of_this_process(std::string const& path) {
  std::size_t const name = path.find_last_of('/') + 1;  // 0 if there is no folder
  std::size_t const dot = path.find_last_of('.');
  std::size_t const place = dot == std::string::npos || dot <= name ? path.size() : dot;
  return path.substr(0, place) + "." + std::to_string(getpid()) + path.substr(place);
}

/// Whether a path is that of a device or an open file, such as /dev/stdout: others use it, so it is only appended to.
bool is_of_others(std::string const& path) {
  return (path.starts_with("/dev/") && !path.starts_with("/dev/shm/")) || path.starts_with("/proc/");
}

/// During its lifetime, writes of this thread to a pipe without a reader, or past a size limit, fail without a signal.
class Unsignalled {
 public:
  Unsignalled() noexcept {
    sigemptyset(&these_);
    sigaddset(&these_, SIGPIPE);
    sigaddset(&these_, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &these_, &before_);
    sigset_t pending;
    sigpending(&pending);
    for (int const signal : {SIGPIPE, SIGXFSZ}) {
      if (sigismember(&pending, signal) == 1) sigdelset(&these_, signal);  // the program's own: stays pending
    }
  }
  ~Unsignalled() {
    int const error = errno;
    timespec const at_once{};
    if (error == EPIPE || error == EFBIG) sigtimedwait(&these_, nullptr, &at_once);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = error;
  }
  Unsignalled(Unsignalled const&) = delete;

 private:
  sigset_t these_, before_;
};

/// Whether a file has only what `pinning run` leaves in it.
bool is_unwritten(int descriptor) {
  char begin[32];
  ssize_t const length = pread(descriptor, begin, sizeof begin, 0);
  std::string_view const text(begin, static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
  return length >= 0 && (text.empty() || text == "[]\n" || text.starts_with("pinning: no report:"));
}

/// Take a file for this process, which keeps its lock; -1 if another process has written it, or takes it too.
int take_unwritten(std::string const& path) {
  int const descriptor = open(path.c_str(), O_RDWR | O_APPEND | O_CLOEXEC | O_NOCTTY);
  bool const is_free = flock(descriptor, LOCK_EX | LOCK_NB) == 0 || errno == EOPNOTSUPP || errno == ENOLCK;
  if (is_free && is_unwritten(descriptor) && ftruncate(descriptor, 0) == 0) return descriptor;
  if (descriptor >= 0) close(descriptor);
  return -1;
}

int make(std::string const& path) {
  return open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
}

}  // namespace

Output& Output::standard_error() {
  static Output& only = *new Output(STDERR_FILENO, "");
  return only;
}

Output Output::create(std::string const& path) {
  std::string made = path;
  int const appended = O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY;
  int descriptor = is_of_others(path) ? open(path.c_str(), appended) : make(made);
  if (descriptor < 0 && errno == EEXIST) {
    struct stat found;
    if (stat(path.c_str(), &found) == 0 && !S_ISREG(found.st_mode)) {  // a device or a pipe
      descriptor = open(path.c_str(), appended);
    } else if (descriptor = take_unwritten(path); descriptor < 0) {
      descriptor = make(made = of_this_process(path));
      if (descriptor >= 0) say("there is a file " + path + " already: this process writes to " + made);
    }
  }
  if (descriptor < 0) throw std::system_error(errno, std::generic_category(), made);
  if (int const higher = fcntl(descriptor, F_DUPFD_CLOEXEC, lowest); higher >= 0) {
    close(descriptor);
    descriptor = higher;
  }
  if (char* const whole = realpath(made.c_str(), nullptr)) {
    made = whole;
    std::free(whole);
  }
  return Output(descriptor, std::move(made));
}

bool Output::is_written(std::string const& path) {
  if (is_of_others(path)) return false;
  int const descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  struct stat found;
  bool const is_file = fstat(descriptor, &found) == 0 && S_ISREG(found.st_mode);
  bool const is_written = is_file && !is_unwritten(descriptor);
  if (descriptor >= 0) close(descriptor);
  return is_written;
}

Output::Output(int descriptor, std::string path) noexcept
    : descriptor_(descriptor), path_(std::move(path)), identity_(descriptor) {
  if (!is_ours()) descriptor_ = -1;
}

Output::Output(Output&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      path_(std::move(other.path_)),
      identity_(other.identity_) {}

Output::~Output() {
  if (!path_.empty() && is_ours()) close(descriptor_);
}

bool Output::write(std::string_view text) noexcept {
  Uncancelled const uncancelled;
  if (!is_ours()) {
    // The program has closed the descriptor. A file of our own can be opened again by its path.
    int const again = path_.empty() ? -1 : open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY);
    if (!identity_.is_of(again)) {
      bool const none_left = again < 0 && !path_.empty() && (errno == EMFILE || errno == ENFILE);
      if (again >= 0) close(again);
      errno = none_left ? EMFILE : EBADF;
      return false;
    }
    descriptor_ = again;
  }
  errno = 0;
  Unsignalled const unsignalled;
  while (!text.empty()) {
    ssize_t const written = ::write(descriptor_, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {  // a pipe that the program has made non-blocking
      pollfd one{descriptor_, POLLOUT, 0};
      if (poll(&one, 1, 1000) <= 0) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

void say(std::string const& text) {
  static auto& mutex = *new std::mutex;
  static auto& said = *new std::set<std::string>;
  {
    std::lock_guard const guard(mutex);
    if (said.size() >= 100 || !said.insert(text).second) return;
  }
  Output::standard_error().write("pinning: " + text + "\n");
}

std::string decimal(double value, int digits) {
  char text[400];  // the longest number has 309 digits before the point
  auto const [end, error] = std::to_chars(text, text + sizeof text, value, std::chars_format::fixed, digits);
  return error == std::errc() ? std::string(text, end) : "?";
}

std::string in_units(std::size_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " B";
  char const* unit = "KiB";
  double value = static_cast<double>(bytes) / 1024;
  for (char const* const larger : {"MiB", "GiB", "TiB"}) {
    if (value < 1024) break;
    value /= 1024;
    unit = larger;
  }
  bool const whole = value >= 100 || value == static_cast<double>(static_cast<std::size_t>(value));
  return decimal(value, whole ? 0 : 1) + " " + unit;
}

}  // namespace pinning::tool
