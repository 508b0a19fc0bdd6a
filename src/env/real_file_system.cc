#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "env/file_system.h"

namespace reprise {
namespace {

absl::Status Failed(const char* what, const std::string& path, int error) {
  const std::string message =
      absl::StrCat("cannot ", what, " ", path, ": ", std::generic_category().message(error));  // strerror is not safe
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case EEXIST:
      return absl::AlreadyExistsError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::UnavailableError(message);
  }
}

// Calls until it is not a signal that ended the call.
template <class Call>
auto Retry(Call call) {
  decltype(call()) result;
  do result = call();
  while (result == -1 && errno == EINTR);
  return result;
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);  // what matters was synced; an error here has nobody to tell
  }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

 private:
  int fd_;
};

class PosixFile : public File {
 public:
  PosixFile(Descriptor descriptor, std::string path) : descriptor_(std::move(descriptor)), path_(std::move(path)) {}

  absl::StatusOr<size_t> ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    size_t done = 0;
    while (done < out.size()) {
      const ssize_t got = Retry([&] {
        return pread(descriptor_.get(), out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
      });
      if (got < 0) return Failed("read", path_, errno);
      if (got == 0) break;
      done += static_cast<size_t>(got);
    }
    return done;
  }

  absl::Status WriteAt(uint64_t offset, std::span<const std::span<const std::byte>> pieces) override {
    constexpr size_t kVectors = 64;  // of one call; pieces are tens of kilobytes, so more would save nothing
    static_assert(kVectors <= IOV_MAX);
    size_t piece = 0, within = 0;  // what comes next
    while (true) {
      iovec vectors[kVectors];
      size_t count = 0;
      for (size_t i = piece, skip = within; i < pieces.size() && count < kVectors; ++i, skip = 0) {
        if (pieces[i].size() == skip) continue;
        vectors[count++] = {const_cast<std::byte*>(pieces[i].data()) + skip, pieces[i].size() - skip};
      }
      if (count == 0) return absl::OkStatus();
      const ssize_t wrote = Retry(
          [&] { return pwritev(descriptor_.get(), vectors, static_cast<int>(count), static_cast<off_t>(offset)); });
      if (wrote < 0) return Failed("write", path_, errno);
      if (wrote == 0) return Failed("write", path_, EIO);  // cannot happen, and must not loop
      offset += static_cast<uint64_t>(wrote);
      for (size_t left = static_cast<size_t>(wrote); left > 0;) {
        const size_t here = std::min(left, pieces[piece].size() - within);
        left -= here;
        within += here;
        if (within == pieces[piece].size()) ++piece, within = 0;
      }
    }
  }

  absl::Status Sync() override {
    if (Retry([&] { return fdatasync(descriptor_.get()); }) != 0) return Failed("sync", path_, errno);
    return absl::OkStatus();
  }

  absl::Status Truncate(uint64_t size) override {
    if (Retry([&] { return ftruncate(descriptor_.get(), static_cast<off_t>(size)); }) != 0)
      return Failed("truncate", path_, errno);
    return absl::OkStatus();
  }

  absl::Status PunchHole(uint64_t offset, uint64_t length) override {
    if (length == 0) return absl::OkStatus();
    const int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    if (Retry([&] {
          return fallocate(descriptor_.get(), mode, static_cast<off_t>(offset), static_cast<off_t>(length));
        }) == 0)
      return absl::OkStatus();
    if (errno == EOPNOTSUPP || errno == ENOSYS)
      return absl::UnimplementedError(absl::StrCat("no holes in files here: ", path_));
    return Failed("punch a hole in", path_, errno);
  }

  absl::StatusOr<uint64_t> Size() const override {
    struct stat status;
    if (fstat(descriptor_.get(), &status) != 0) return Failed("stat", path_, errno);
    return static_cast<uint64_t>(status.st_size);
  }

  void DropPageCache(uint64_t offset, uint64_t length) override {
    posix_fadvise(descriptor_.get(), static_cast<off_t>(offset), static_cast<off_t>(length), POSIX_FADV_DONTNEED);
  }

 private:
  const Descriptor descriptor_;
  const std::string path_;
};

class PosixLock : public FileLock {
 public:
  explicit PosixLock(Descriptor descriptor) : descriptor_(std::move(descriptor)) {}

 private:
  const Descriptor descriptor_;  // closing it lets go
};

class PosixFileSystem : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, Mode mode) override {
    const int flags = mode == Mode::kRead ? O_RDONLY : mode == Mode::kReadWrite ? O_RDWR : O_RDWR | O_CREAT | O_EXCL;
    Descriptor descriptor(Retry([&] { return open(path.c_str(), flags | O_CLOEXEC, 0600); }));
    if (!descriptor.ok()) return Failed(mode == Mode::kCreate ? "create" : "open", path, errno);
    return std::make_unique<PosixFile>(std::move(descriptor), path);
  }

  absl::Status MakeDirectories(const std::string& path) override {
    const std::filesystem::path whole(path);
    std::filesystem::path so_far;
    for (const std::filesystem::path& part : whole) {
      const std::string parent = so_far.empty() ? "." : so_far.string();
      so_far /= part;
      struct stat status;
      if (stat(so_far.c_str(), &status) == 0) {
        if (!S_ISDIR(status.st_mode)) return Failed("make directory", so_far.string(), ENOTDIR);
        continue;
      }
      // Another process may be making the same one.
      if (mkdir(so_far.c_str(), 0700) != 0 && errno != EEXIST) return Failed("make directory", so_far.string(), errno);
      if (absl::Status status = SyncDirectory(parent); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::string>> ListFiles(const std::string& directory) override {
    return List(directory, S_IFREG);
  }
  absl::StatusOr<std::vector<std::string>> ListDirectories(const std::string& directory) override {
    return List(directory, S_IFDIR);
  }

  absl::Status Remove(const std::string& path) override {
    if (unlink(path.c_str()) != 0) return Failed("remove", path, errno);
    return absl::OkStatus();
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (rename(from.c_str(), to.c_str()) != 0) return Failed(absl::StrCat("rename to ", to, ":").c_str(), from, errno);
    return absl::OkStatus();
  }

  absl::Status SyncDirectory(const std::string& path) override {
    Descriptor descriptor(Retry([&] { return open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
    if (!descriptor.ok()) return Failed("open directory", path, errno);
    if (Retry([&] { return fsync(descriptor.get()); }) != 0 && errno != EINVAL)  // EINVAL: has nothing to sync
      return Failed("sync directory", path, errno);
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<FileLock>> Lock(const std::string& path) override {
    Descriptor descriptor(Retry([&] { return open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600); }));
    if (!descriptor.ok()) return Failed("open", path, errno);
    // Of the open file, not of the process as fcntl's are: a second owner in this process is refused too.
    if (Retry([&] { return flock(descriptor.get(), LOCK_EX | LOCK_NB); }) == 0)
      return std::make_unique<PosixLock>(std::move(descriptor));
    if (errno == EWOULDBLOCK) return absl::AlreadyExistsError(absl::StrCat(path, " is locked by another process"));
    return Failed("lock", path, errno);
  }

  absl::StatusOr<uint64_t> FreeBytes(const std::string& path) override {
    std::filesystem::path at = std::filesystem::absolute(path);
    struct statvfs status;
    while (statvfs(at.c_str(), &status) != 0) {
      if (errno == EINTR) continue;
      if (errno != ENOENT || !at.has_relative_path()) return Failed("ask for free space of", at.string(), errno);
      at = at.parent_path();
    }
    return static_cast<uint64_t>(status.f_bavail) * status.f_frsize;
  }

 private:
  // Names of what is of one kind in a directory.
  static absl::StatusOr<std::vector<std::string>> List(const std::string& directory, mode_t kind) {
    DIR* stream = opendir(directory.c_str());
    if (stream == nullptr) return Failed("list", directory, errno);
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = readdir(stream)) {
      struct stat status;  // d_type is unknown on some file systems
      const std::string_view name = entry->d_name;
      if (name != "." && name != ".." && fstatat(dirfd(stream), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
          (status.st_mode & S_IFMT) == kind)
        names.emplace_back(name);
      errno = 0;  // a name that was removed meanwhile
    }
    const int error = errno;
    closedir(stream);
    if (error != 0) return Failed("list", directory, error);
    std::sort(names.begin(), names.end());
    return names;
  }
};

}  // namespace

FileSystem& RealFileSystem() {
  static PosixFileSystem& files = *new PosixFileSystem;
  return files;
}

}  // namespace reprise
