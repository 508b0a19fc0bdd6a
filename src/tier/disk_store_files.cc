#include "tier/disk_store_files.h"

#include <cstdlib>
#include <memory>
#include <span>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace reprise {
namespace {

constexpr uint64_t kDirectoryVersion = 1;
constexpr char kVersionText[] = "reprise disk tier, version ";

std::string VersionText() { return absl::StrCat(kVersionText, kDirectoryVersion, "\n"); }

}  // namespace

absl::Status CheckDirectoryVersion(FileSystem& files, const std::string& directory) {
  const absl::StatusOr<std::unique_ptr<File>> file =
      files.Open(absl::StrCat(directory, "/", kVersionName), FileSystem::Mode::kRead);
  if (!file.ok()) return file.status();
  std::string found(64, '\0');
  const absl::StatusOr<size_t> got = (*file)->ReadAt(0, std::as_writable_bytes(std::span(found)));
  if (!got.ok()) return got.status();
  found.resize(*got);
  if (found == VersionText()) return absl::OkStatus();
  const std::string_view text(kVersionText);
  if (found.substr(0, text.size()) == text) {
    const uint64_t version = std::strtoull(found.c_str() + text.size(), nullptr, 10);
    if (version > kDirectoryVersion) {
      return absl::FailedPreconditionError(absl::StrCat("it was written by a later version (format ", version,
                                                        "; this program knows ", kDirectoryVersion, ")"));
    }
  }
  return absl::DataLossError("the file that says the directory's version is damaged");
}

absl::Status WriteDirectoryVersion(FileSystem& files, const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/", kVersionName);
  absl::StatusOr<std::unique_ptr<File>> file = files.Open(path, FileSystem::Mode::kCreate);
  if (absl::IsAlreadyExists(file.status())) file = files.Open(path, FileSystem::Mode::kReadWrite);
  if (!file.ok()) return file.status();
  const std::string text = VersionText();
  const std::span<const std::byte> piece = std::as_bytes(std::span(text));
  absl::Status status = (*file)->WriteAt(0, {&piece, 1});
  if (status.ok()) status = (*file)->Truncate(text.size());
  return status.ok() ? (*file)->Sync() : status;
}

uint64_t FileSize(FileSystem& files, const std::string& path) {
  const absl::StatusOr<std::unique_ptr<File>> file = files.Open(path, FileSystem::Mode::kRead);
  if (!file.ok()) return 0;
  const absl::StatusOr<uint64_t> size = (*file)->Size();
  return size.ok() ? *size : 0;
}

}  // namespace reprise
