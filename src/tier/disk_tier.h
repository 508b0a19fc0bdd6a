// The disk as a tier: a directory of records behind queues and threads, opened with one call. KvCacheOptions::tier
// takes it.
//
// Ownership: the tier owns files, threads and memory; it must outlive the cache that uses it.
// Threads:   OpenDiskTier: one. Then see Tier.
// Errors:    those of opening: PermissionDenied, ResourceExhausted, Unavailable, and FailedPrecondition for a directory
// of a
//            later version; with the path and what the system said. Afterwards everything that goes wrong is a miss.
// Design:    DESIGN 8; docs/format/segment.md, docs/format/record.md
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/geometry.h"
#include "base/ledger.h"
#include "tier/tier.h"

namespace reprise {

class FileSystem;
enum class Codec : uint8_t;

struct DiskTierOptions {
  std::string directory;                        // of one model and geometry; made if need be
  uint64_t bytes_max = 0;                       // hard cap of all files in it
  Codec codec{};                                // of what is written; the first one: raw
  FileSystem* files = nullptr;                  // null: the real one
  std::function<void(const std::string&)> log;  // a line when it stops working, and one when it works again; any thread
};

// Reads that it does at once: KvCacheOptions::tier_readers.
inline constexpr uint32_t kDiskTierReaders = 2;

// What it takes of the ledger: index, staging, queues.
std::vector<Footprint> DiskTierFootprints(const DiskTierOptions& options, const Geometry& geometry);

struct DiskTier {
  std::unique_ptr<Tier> tier;
  bool read_only = false;        // another process writes to the directory
  uint64_t cut_bytes = 0;        // of torn ends, which a crash leaves
  uint64_t foreign_records = 0;  // of another geometry, version or byte order: never served, and go with their segments
  uint64_t damaged_records = 0;
  double seconds = 0;  // that opening took
};
absl::StatusOr<DiskTier> OpenDiskTier(const DiskTierOptions& options, const Geometry& geometry, Ledger& ledger);

}  // namespace reprise
