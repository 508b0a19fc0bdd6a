#include "env/faulty_file_system.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace reprise {

class FaultyFileSystem::FaultyFile : public File {
 public:
  FaultyFile(FaultyFileSystem& owner, std::unique_ptr<File> file, std::string path)
      : owner_(owner), file_(std::move(file)), path_(std::move(path)) {}

  absl::StatusOr<size_t> ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    if (absl::Status status = owner_.Begin(Kind::kRead, path_, false); !status.ok()) return status;
    absl::StatusOr<size_t> got = file_->ReadAt(offset, out);
    if (!got.ok() || *got == 0) return got;
    std::lock_guard lock(owner_.mutex_);
    if (owner_.Draw(owner_.faults_.short_share)) {
      ++owner_.injected_;
      *got = owner_.random_() % *got;
    }
    if (*got > 0 && owner_.Draw(owner_.faults_.flip_share)) {
      ++owner_.injected_;
      out[owner_.random_() % *got] ^= std::byte{1} << owner_.random_() % 8;
    }
    return got;
  }

  absl::Status WriteAt(uint64_t offset, std::span<const std::span<const std::byte>> pieces) override {
    const absl::Status status = owner_.Begin(Kind::kWrite, path_, false);
    uint64_t wanted = 0;
    for (std::span<const std::byte> piece : pieces) wanted += piece.size();
    if (!status.ok()) {
      // A disk that fails may have taken some of it; one that cannot be written has not.
      if (absl::IsUnavailable(status)) WriteSome(offset, pieces, owner_.SomeOf(wanted));
      return status;
    }
    const uint64_t room = owner_.TakeRoom(wanted);
    if (room == wanted) return file_->WriteAt(offset, pieces);
    WriteSome(offset, pieces, room);
    return absl::ResourceExhaustedError(absl::StrCat("cannot write ", path_, ": no space left (injected)"));
  }

  absl::Status Sync() override {
    return Change([&] { return file_->Sync(); });
  }
  absl::Status Truncate(uint64_t size) override {
    return Change([&] { return file_->Truncate(size); });
  }
  absl::Status PunchHole(uint64_t offset, uint64_t length) override {
    return Change([&] { return file_->PunchHole(offset, length); });
  }
  absl::StatusOr<uint64_t> Size() const override {
    if (absl::Status status = owner_.Begin(Kind::kRead, path_, false); !status.ok()) return status;
    return file_->Size();
  }
  void DropPageCache(uint64_t offset, uint64_t length) override { file_->DropPageCache(offset, length); }

 private:
  template <class Operation>
  absl::Status Change(Operation operation) {
    if (absl::Status status = owner_.Begin(Kind::kChange, path_, false); !status.ok()) return status;
    return operation();
  }

  // The first `bytes` of the pieces. The caller fails anyway, so what the file says does not matter.
  void WriteSome(uint64_t offset, std::span<const std::span<const std::byte>> pieces, uint64_t bytes) {
    std::vector<std::span<const std::byte>> some;
    for (std::span<const std::byte> piece : pieces) {
      some.push_back(piece.first(std::min<uint64_t>(piece.size(), bytes)));
      bytes -= some.back().size();
    }
    file_->WriteAt(offset, some).IgnoreError();
  }

  FaultyFileSystem& owner_;
  const std::unique_ptr<File> file_;
  const std::string path_;
};

void FaultyFileSystem::Set(const Faults& faults) {
  std::lock_guard lock(mutex_);
  faults_ = faults;
  random_.seed(faults.seed);
}

uint64_t FaultyFileSystem::operations() const {
  std::lock_guard lock(mutex_);
  return operations_;
}

uint64_t FaultyFileSystem::injected() const {
  std::lock_guard lock(mutex_);
  return injected_;
}

absl::Status FaultyFileSystem::Begin(Kind kind, const std::string& path, bool named) {
  std::unique_lock lock(mutex_);
  if (const std::chrono::milliseconds delay = faults_.delay; delay.count() > 0) {
    lock.unlock();
    std::this_thread::sleep_for(delay);
    lock.lock();
  }
  ++operations_;
  ++injected_;  // taken back where nothing happens
  if (named && faults_.deleted) return absl::NotFoundError(absl::StrCat(path, ": no such file (injected)"));
  if (kind != Kind::kRead && faults_.read_only)
    return absl::PermissionDeniedError(absl::StrCat("cannot change ", path, ": read-only file system (injected)"));
  if (kind == Kind::kCreate && faults_.room_bytes == 0)
    return absl::ResourceExhaustedError(absl::StrCat("cannot create ", path, ": no space left (injected)"));
  bool fails = (kind == Kind::kRead ? faults_.fail_reads : faults_.fail_changes) && Draw(faults_.fail_share);
  if (faults_.fail_at.has_value()) {
    fails = fails || *faults_.fail_at == 0;
    if (*faults_.fail_at == 0)
      faults_.fail_at.reset();
    else
      --*faults_.fail_at;
  }
  if (fails) return absl::UnavailableError(absl::StrCat(path, ": input/output error (injected)"));
  --injected_;
  return absl::OkStatus();
}

uint64_t FaultyFileSystem::TakeRoom(uint64_t wanted) {
  std::lock_guard lock(mutex_);
  if (!faults_.room_bytes.has_value()) return wanted;
  const uint64_t taken = std::min(wanted, *faults_.room_bytes);
  *faults_.room_bytes -= taken;
  injected_ += taken != wanted;
  return taken;
}

uint64_t FaultyFileSystem::SomeOf(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  return bytes == 0 ? 0 : random_() % bytes;
}

absl::StatusOr<std::unique_ptr<File>> FaultyFileSystem::Open(const std::string& path, Mode mode) {
  // What is there may be opened for writing on a full disk, not on a read-only one.
  const Kind kind = mode == Mode::kRead ? Kind::kRead : mode == Mode::kCreate ? Kind::kCreate : Kind::kChange;
  if (absl::Status status = Begin(kind, path, true); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<File>> file = files_.Open(path, mode);
  if (!file.ok()) return file;
  return std::make_unique<FaultyFile>(*this, *std::move(file), path);
}

absl::Status FaultyFileSystem::MakeDirectories(const std::string& path) {
  // Made anew where it was deleted; the names in it stay lost until the fault is taken away.
  if (absl::Status status = Begin(Kind::kCreate, path, false); !status.ok()) return status;
  return files_.MakeDirectories(path);
}

absl::StatusOr<std::vector<std::string>> FaultyFileSystem::ListFiles(const std::string& directory) {
  if (absl::Status status = Begin(Kind::kRead, directory, true); !status.ok()) return status;
  return files_.ListFiles(directory);
}

absl::StatusOr<std::vector<std::string>> FaultyFileSystem::ListDirectories(const std::string& directory) {
  if (absl::Status status = Begin(Kind::kRead, directory, true); !status.ok()) return status;
  return files_.ListDirectories(directory);
}

absl::Status FaultyFileSystem::Remove(const std::string& path) {
  if (absl::Status status = Begin(Kind::kChange, path, true); !status.ok()) return status;
  return files_.Remove(path);
}

absl::Status FaultyFileSystem::Rename(const std::string& from, const std::string& to) {
  if (absl::Status status = Begin(Kind::kChange, from, true); !status.ok()) return status;
  return files_.Rename(from, to);
}

absl::Status FaultyFileSystem::SyncDirectory(const std::string& path) {
  if (absl::Status status = Begin(Kind::kChange, path, true); !status.ok()) return status;
  return files_.SyncDirectory(path);
}

absl::StatusOr<std::unique_ptr<FileLock>> FaultyFileSystem::Lock(const std::string& path) {
  if (absl::Status status = Begin(Kind::kChange, path, true); !status.ok()) return status;
  return files_.Lock(path);
}

absl::StatusOr<uint64_t> FaultyFileSystem::FreeBytes(const std::string& path) {
  if (absl::Status status = Begin(Kind::kRead, path, false); !status.ok()) return status;
  const absl::StatusOr<uint64_t> free = files_.FreeBytes(path);
  std::lock_guard lock(mutex_);
  if (!free.ok() || !faults_.room_bytes.has_value()) return free;
  return std::min(*free, *faults_.room_bytes);
}

}  // namespace reprise
