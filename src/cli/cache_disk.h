// What lies in a cache directory, and housekeeping there, without a server: one directory for each model in it.
//
// Ownership: values; words (or JSON) are appended to `out`.
// Threads:   any.
// Errors:    of the file system. FailedPrecondition: a server is using it, or it is of a later version. DataLoss:
//            VerifyCache found damage; `out` says where. A directory that is missing or empty is said, not an error.
// Design:    docs/cache.md
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "env/file_system.h"

namespace reprise {

struct CacheDisk {
  FileSystem& files;
  std::string directory;  // of all models, or of one
  bool json = false;
};

absl::Status StatCache(const CacheDisk& disk, std::string& out);
// `now_s`: Unix time, for ages.
absl::Status ListCache(const CacheDisk& disk, uint64_t now_s, std::string& out);
// `progress`: of all, 0 to 1.
absl::Status VerifyCache(const CacheDisk& disk, const std::function<void(double)>& progress, std::string& out);
// `bytes_max`: of each model.
absl::Status CollectCache(const CacheDisk& disk, uint64_t bytes_max, std::string& out);
// `scope`: a tenant's name, or 8 or more of the digits that ListCache shows for one.
absl::Status EraseCache(const CacheDisk& disk, const std::string& scope, std::string& out);

}  // namespace reprise
