#include "model/model_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace reprise {
namespace {

FileStamp StampOf(const struct stat& status) {
  constexpr int64_t kNsPerSecond = 1'000'000'000;
  return {.device = status.st_dev,
          .inode = status.st_ino,
          .size = static_cast<uint64_t>(status.st_size),
          .modified_ns = status.st_mtim.tv_sec * kNsPerSecond + status.st_mtim.tv_nsec,
          .changed_ns = status.st_ctim.tv_sec * kNsPerSecond + status.st_ctim.tv_nsec};
}

absl::Status SystemError(const std::string& path, std::string_view what) {
  const int error = errno;
  const std::string message = absl::StrCat(path, ": ", std::string(what), ": ", std::strerror(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(message);
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(message);
  return absl::UnavailableError(message);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelFile>> ModelFile::Open(const std::string& path) {
  // Non-blocking: opening a pipe must not wait for a writer.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return SystemError(path, "cannot be opened");
  struct stat status;
  if (fstat(descriptor, &status) != 0) {
    const absl::Status error = SystemError(path, "cannot be examined");
    close(descriptor);
    return error;
  }
  if (!S_ISREG(status.st_mode)) {
    close(descriptor);
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not a regular file"));
  }
  return std::unique_ptr<ModelFile>(new ModelFile(path, descriptor, StampOf(status)));
}

ModelFile::~ModelFile() { close(descriptor_); }

absl::Status ModelFile::Read(uint64_t offset, std::span<std::byte> out) const {
  CHECK_LE(offset, stamp_.size);
  CHECK_LE(out.size(), stamp_.size - offset);
  while (!out.empty()) {
    const ssize_t got = pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError(path_, absl::StrCat("cannot be read at byte ", offset));
    if (got == 0)
      return absl::FailedPreconditionError(absl::StrCat(path_, ": the file was cut to ", offset,
                                                        " B or less while it was read; it had ", stamp_.size, " B"));
    out = out.subspan(static_cast<size_t>(got));
    offset += static_cast<uint64_t>(got);
  }
  return absl::OkStatus();
}

absl::Status ModelFile::CheckUnchanged(const FileStamp& stamp) const {
  struct stat open_file;
  struct stat path_file;
  if (fstat(descriptor_, &open_file) != 0) return SystemError(path_, "cannot be examined");
  if (stat(path_.c_str(), &path_file) != 0) return SystemError(path_, "cannot be examined");
  for (const FileStamp& now : {StampOf(open_file), StampOf(path_file)}) {
    if (now == stamp) continue;
    const char* what = now.device != stamp.device || now.inode != stamp.inode ? "it was replaced by another file"
                       : now.size != stamp.size                               ? "its size changed"
                       : now.modified_ns != stamp.modified_ns                 ? "it was written to"
                                                                              : "its attributes changed";
    return absl::FailedPreconditionError(absl::StrCat(path_, ": the file changed while it was being read (", what,
                                                      "); start again when it is complete"));
  }
  return absl::OkStatus();
}

}  // namespace reprise
