// A file system with faults, for tests: full, failing, slow, read-only, deleted, or with bits that flip. Faults are
// switched on and off while it runs.
//
// Ownership: the wrapped file system must outlive it, and it the files that it opened.
// Threads:   any, all methods.
// Errors:    as FileSystem, with "(injected)" in the message.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "env/file_system.h"

namespace reprise {

struct Faults {
  // Writes may add up to so many bytes, from now on; the one that passes it writes what still fits and is
  // ResourceExhausted (ENOSPC), as are creations afterwards. FreeBytes says what is left.
  std::optional<uint64_t> room_bytes;
  // The n-th operation from now on, 0 the next one, is Unavailable (EIO); the ones after it are not.
  std::optional<uint64_t> fail_at;
  double fail_share = 0;               // so many of all operations are Unavailable; a write may have written a part
  bool fail_reads = true;              // whether operations that change nothing are among them
  bool fail_changes = true;            // and those that change something
  std::chrono::milliseconds delay{0};  // of every operation, before it happens
  bool read_only = false;              // whatever would change something is PermissionDenied (EROFS)
  // Every name is NotFound, as after `rm -r`; files that are open can be read and written.
  bool deleted = false;
  double flip_share = 0;   // so many of all reads have one bit flipped
  double short_share = 0;  // so many of all reads end early, as if the file ended there
  uint64_t seed = 1;
};

class FaultyFileSystem : public FileSystem {
 public:
  explicit FaultyFileSystem(FileSystem& files) : files_(files) {}

  void Set(const Faults& faults);  // instead of the ones before
  uint64_t operations() const;     // since the beginning, whatever became of them
  uint64_t injected() const;       // operations that a fault changed; a delay alone does not count

  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, Mode mode) override;
  absl::Status MakeDirectories(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> ListFiles(const std::string& directory) override;
  absl::StatusOr<std::vector<std::string>> ListDirectories(const std::string& directory) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status SyncDirectory(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<FileLock>> Lock(const std::string& path) override;
  absl::StatusOr<uint64_t> FreeBytes(const std::string& path) override;

 private:
  class FaultyFile;
  enum class Kind : uint8_t { kRead, kWrite, kCreate, kChange };  // kChange: of names and sizes, and syncs

  // Comes before an operation: waits, counts, and says whether it fails. `named`: it looks for a path.
  absl::Status Begin(Kind kind, const std::string& path, bool named);
  // Of `wanted` bytes to write: how many may be.
  uint64_t TakeRoom(uint64_t wanted);
  uint64_t SomeOf(uint64_t bytes);  // at random, fewer
  // With the mutex held.
  bool Draw(double share) { return share > 0 && std::uniform_real_distribution<>()(random_) < share; }

  FileSystem& files_;
  mutable std::mutex mutex_;  // of all that follows
  Faults faults_;
  std::mt19937_64 random_;
  uint64_t operations_ = 0, injected_ = 0;
};

}  // namespace reprise
