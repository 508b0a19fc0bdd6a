// Files, as a tier keeps records in them: real, in memory (what was not synced is lost in a simulated power cut), and
// with faults (env/*_file_system.h).
//
// Ownership: a File owns its descriptor; a FileSystem must outlive the files and locks that it gave out.
// Threads:   all methods from any thread; one writer per file at a time.
// Errors:    NotFound, AlreadyExists, PermissionDenied (EACCES, EPERM, EROFS), ResourceExhausted (ENOSPC, EDQUOT,
//            EMFILE), Unavailable (EIO and what else the system has). Messages name the path and what the system said.
//            A file that was removed, or whose directory was, can still be read and written by those who have it open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace reprise {

class File {
 public:
  virtual ~File() = default;

  // Fills `out` from `offset` on; fewer bytes only at the end of the file. Returns how many.
  virtual absl::StatusOr<size_t> ReadAt(uint64_t offset, std::span<std::byte> out) const = 0;
  // Writes the pieces one after the other from `offset` on. On an error some may have been written.
  virtual absl::Status WriteAt(uint64_t offset, std::span<const std::span<const std::byte>> pieces) = 0;
  // What was written is on the disk when this returns (fdatasync).
  virtual absl::Status Sync() = 0;
  virtual absl::Status Truncate(uint64_t size) = 0;
  // Gives the bytes back to the file system; they read as 0. The size stays. Unimplemented, and nothing changed, where
  // the file system cannot do that.
  virtual absl::Status PunchHole(uint64_t offset, uint64_t length) = 0;
  virtual absl::StatusOr<uint64_t> Size() const = 0;
  // Of the file's pages in the system's cache: not needed soon. A hint.
  virtual void DropPageCache(uint64_t offset, uint64_t length) = 0;
};

// Held as long as it lives; the kernel lets go of it when the process ends, however it ends.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  enum class Mode : uint8_t {
    kRead,
    kReadWrite,
    kCreate,  // read and write, 0600; AlreadyExists if it is there
  };
  virtual absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, Mode mode) = 0;
  // With its parents; 0700; on the disk when it returns. Ok if it is there.
  virtual absl::Status MakeDirectories(const std::string& path) = 0;
  // Names of regular files in it, sorted; no links, pipes or sockets.
  virtual absl::StatusOr<std::vector<std::string>> ListFiles(const std::string& directory) = 0;
  virtual absl::StatusOr<std::vector<std::string>> ListDirectories(const std::string& directory) = 0;
  virtual absl::Status Remove(const std::string& path) = 0;
  // Atomic; replaces what is there.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  // New, renamed and removed names are on the disk when this returns.
  virtual absl::Status SyncDirectory(const std::string& path) = 0;
  // An exclusive lock on a file that is made if need be. AlreadyExists: another process, or another owner in this one,
  // has it.
  virtual absl::StatusOr<std::unique_ptr<FileLock>> Lock(const std::string& path) = 0;
  // That an unprivileged process may still write, in the file system of `path` (or of its nearest parent that exists).
  virtual absl::StatusOr<uint64_t> FreeBytes(const std::string& path) = 0;
};

FileSystem& RealFileSystem();

}  // namespace reprise
