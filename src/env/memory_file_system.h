// Files in memory that know what was synced, so that a test can take the power away between any two changes.
//
//   MemoryFileSystem files;
//   files.SetHook([&](const MemoryFileSystem::Change&) { disks.push_back(files.AfterPowerCut(seed++)); });
//   Work(files);                           // each element of `disks` is what another run may find
//
// A power cut keeps what was synced. Of the rest it keeps some: sectors of 512 bytes of what was written, sizes that
// were changed (what was never written reads as 0), names that were made, renamed or removed. How much of it is drawn
// from the seed: nothing, all or a part, so that the extremes come up as well. Directories are durable, as
// MakeDirectories says.
//
// Ownership: owns all bytes; pages are shared between copies until they are written. Files and locks may outlive it.
// Threads:   any, all methods. The hook runs on the thread that makes the change, before it, without a lock held.
// Errors:    as FileSystem. ResourceExhausted when the capacity is used up: a write then has written a part.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "env/file_system.h"

namespace reprise {

class MemoryFileSystem : public FileSystem {
 public:
  MemoryFileSystem();
  ~MemoryFileSystem() override;

  struct Change {
    uint64_t number = 0;    // 0 is the first
    std::string_view kind;  // "write" "sync" "truncate" "punch" "create" "remove" "rename" "sync_directory"
    std::string_view path;
  };
  void SetHook(std::function<void(const Change&)> hook);
  uint64_t changes() const;

  // Of all files together, in pages of 4 KiB; the default is no limit.
  void SetCapacity(uint64_t bytes);

  // What is there when the power has come back. No locks, no hook; the same capacity.
  std::unique_ptr<MemoryFileSystem> AfterPowerCut(uint64_t seed) const;
  // What is there when only the process died: all of it.
  std::unique_ptr<MemoryFileSystem> AfterKill() const;

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
  struct State;
  class OpenFile;
  class HeldLock;
  const std::shared_ptr<State> state_;
};

}  // namespace reprise
