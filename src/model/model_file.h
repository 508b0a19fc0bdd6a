// A model file, read with pread and never mapped: a file that is truncated or overwritten while it is
// open gives an error, not a signal.
//
// Ownership: owns the descriptor. Threads: const methods from any thread at once.
// Errors:    NotFound, PermissionDenied, InvalidArgument (not a regular file); FailedPrecondition when
//            the file is not the one that was opened any more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace reprise {

// Where GGUF bytes come from: a file, or memory in tests and fuzzers.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual uint64_t size() const = 0;
  // Fills `out` from `offset`. REQUIRES: offset + out.size() <= size().
  virtual absl::Status Read(uint64_t offset, std::span<std::byte> out) const = 0;
};

// What makes a file this file: any write, replacement or truncation changes one of these.
struct FileStamp {
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t size = 0;
  int64_t modified_ns = 0;
  int64_t changed_ns = 0;
  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

class ModelFile final : public ByteSource {
 public:
  static absl::StatusOr<std::unique_ptr<ModelFile>> Open(const std::string& path);
  ~ModelFile() override;

  uint64_t size() const override { return stamp_.size; }
  absl::Status Read(uint64_t offset, std::span<std::byte> out) const override;

  const FileStamp& stamp() const { return stamp_; }
  // OK if both the open file and the one now at the path have this stamp.
  absl::Status CheckUnchanged(const FileStamp& stamp) const;

 private:
  ModelFile(std::string path, int descriptor, const FileStamp& stamp)
      : path_(std::move(path)), descriptor_(descriptor), stamp_(stamp) {}

  const std::string path_;
  const int descriptor_;
  const FileStamp stamp_;
};

}  // namespace reprise
