// Names and versions of what lies in the disk store's directory, beside its segments.
//
// Threads: any. Errors: of the file system, and as said.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "env/file_system.h"

namespace reprise {

inline constexpr char kLockName[] = "lock";
inline constexpr char kVersionName[] = "version";

// FailedPrecondition: of a later version. DataLoss: it says nothing that is known. NotFound: no such file.
absl::Status CheckDirectoryVersion(FileSystem& files, const std::string& directory);
absl::Status WriteDirectoryVersion(FileSystem& files, const std::string& directory);

// 0 if it cannot be had.
uint64_t FileSize(FileSystem& files, const std::string& path);

}  // namespace reprise
