// SPDX-License-Identifier: Apache-2.0
// Files that the threads of the staging engine read and write.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "pinning.h"

namespace pinning {

/// An open regular file, closed with its last owner. Any thread may read or write it, several at a time.
class File {
 public:
  /// Returned by `read` if the file ends too early; other values are errnos.
  static constexpr int ended = -1;
  /// A page of the caller's memory may be gone, such as one of a mapped file that was truncated: that is EFAULT.
  enum class Memory : bool { ours, of_caller };

  /// Take ownership of a descriptor.
  explicit File(int descriptor) noexcept : descriptor_(descriptor) {}
  File(File const&) = delete;
  PINNING_API ~File();

  int descriptor() const noexcept { return descriptor_; }

  /// If part of this range is not in the page cache and the disk allows O_DIRECT, read uncached data past the page
  /// cache from now on. Call it before any other thread uses the file.
  PINNING_API void read_past_cache(std::uint64_t offset, std::uint64_t size) noexcept;
  /// Give a new file its size, and choose how several threads write it at once; `past_cache`: past the page cache, if
  /// the disk allows it. Returns 0 or an errno. Call it before any other thread uses the file.
  PINNING_API int prepare_to_write(std::uint64_t size, bool past_cache) noexcept;
  bool is_past_cache() const noexcept { return direct_ >= 0; }

  /// Read or write all bytes; returns 0, an errno or `ended`.
  PINNING_API int read(char* to, std::uint64_t offset, std::uint64_t size, Memory memory) const noexcept;
  PINNING_API int write(char const* from, std::uint64_t offset, std::uint64_t size, Memory memory) const noexcept;

 private:
  int read_direct(char* to, std::uint64_t offset, std::uint64_t size, Memory memory) const noexcept;
  int write_direct(char const* from, std::uint64_t offset, std::uint64_t size, Memory memory) const noexcept;
  int write_cached(char const* from, std::uint64_t offset, std::uint64_t size) const noexcept;
  int write_mapped(char const* from, std::uint64_t offset, std::uint64_t size, Memory memory) const noexcept;
  int find_pages(std::uint64_t end) const noexcept;

  int const descriptor_;
  int direct_ = -1;  // the same file, opened with O_DIRECT
  char* mapped_ = nullptr;  // a file in tmpfs that is written, as a whole
  std::uint64_t mapped_size_ = 0;
  mutable std::mutex finding_;
  mutable std::atomic<std::uint64_t> found_{0};  // bytes from the start that have pages
};

/// The first error of a copy with a file at one end. Shared by the copy and its event.
class FileOutcome {
 public:
  /// Stop the copy: no more bytes are moved, and the rest of the destination is left unchanged. The first reason stays.
  void fail(int why, std::uint64_t offset) noexcept {
    std::uint64_t none = 0;
    failure_.compare_exchange_strong(none, failed | static_cast<std::uint64_t>(why + 1) << 48 | (offset & low));
  }
  bool has_failed() const noexcept { return failure_.load(std::memory_order_relaxed) != 0; }
  /// An errno, or `File::ended`.
  int reason() const noexcept { return static_cast<int>((failure_.load() & ~failed) >> 48) - 1; }
  std::uint64_t failed_at() const noexcept { return failure_.load() & low; }

 private:
  static constexpr std::uint64_t failed = std::uint64_t{1} << 63, low = (std::uint64_t{1} << 48) - 1;
  std::atomic<std::uint64_t> failure_{0};  // reason and offset in one word
};

/// Where bytes are in a file: from `begin` on, or in rows of `row` bytes that begin `pitch` bytes apart.
struct FileRows {
  static constexpr std::uint64_t endless = ~std::uint64_t{0};

  std::uint64_t begin, row = endless, pitch = 0;
};

/// Bytes to copy between memory and a file, whose end (`src` if it is read) is an offset. Only read ones can have rows.
struct FilePart {
  std::uint64_t dst, src, size, row = FileRows::endless, pitch = 0;
};

/// The file's end of a copy. It keeps the file open.
struct PINNING_API FileEnd {
  std::shared_ptr<File> file;
  std::shared_ptr<FileOutcome> outcome;
  bool writes = false;
  File::Memory memory = File::Memory::ours;

  explicit operator bool() const noexcept { return file != nullptr; }

  /// Move bytes between the file and memory, from byte `at` of the rows on, unless the copy has failed.
  void move(char* ptr, FileRows const& rows, std::uint64_t at, std::uint64_t size) const noexcept;

 private:
  void move_range(char* ptr, std::uint64_t offset, std::uint64_t size) const noexcept;
};

}  // namespace pinning
