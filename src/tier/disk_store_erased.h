// Which tenants were purged, kept beside the segments until nothing older than the purge is left: the file `erased`
// (docs/format/segment.md). Replaced as a whole, and durable when WriteErased returns.
//
// Ownership: values. Threads: one at a time per object.
// Errors:    DataLoss: the file says nothing, so nothing older than it may be served; FailedPrecondition: of a later
//            version; else of the file system.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/hash.h"
#include "env/file_system.h"

namespace reprise {

inline constexpr char kErasedName[] = "erased";
inline constexpr char kErasedNewName[] = "erased.new";  // while it is written
inline constexpr uint32_t kErasedTenantsMax = 4096;

struct ErasedTenants {
  uint64_t all_before = 0;             // records with lower sequence numbers do not count, whoever's they are
  std::map<Digest, uint64_t> tenants;  // the same of one tenant's

  // Beyond kErasedTenantsMax tenants, everything up to the newest purge counts as purged: safe, and dear.
  void Add(const Digest& tenant, uint64_t before);
  bool Covers(const Digest& tenant, uint64_t sequence) const;
  // A store goes on with sequence numbers that are not below this.
  uint64_t sequence_min() const;
  bool empty() const { return all_before == 0 && tenants.empty(); }
  uint64_t file_bytes() const;  // 0 when empty
};

std::vector<std::byte> EncodeErased(const ErasedTenants& erased);
absl::StatusOr<ErasedTenants> DecodeErased(std::span<const std::byte> bytes);

// Without a file: empty.
absl::StatusOr<ErasedTenants> ReadErased(FileSystem& files, const std::string& directory);
absl::Status WriteErased(FileSystem& files, const std::string& directory, const ErasedTenants& erased);

}  // namespace reprise
