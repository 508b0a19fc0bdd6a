// The disk: records in append-only segments under one locked directory. The index is in memory and made at the start
// from the segments' footers (or, where a footer is missing, from the records themselves up to a torn end). Byte by
// byte in docs/format/segment.md.
//
//   DIR/version                  of the directory's format
//   DIR/lock                     flock of the writing process
//   DIR/segment-0000000000000001  records one after the other, a footer when full
//   DIR/erased                   tenants that were purged: records before such a sequence number do not count
//
// A record is written, then published in the index. Over the cap, whole segments are reclaimed, least used ones first;
// what is hot in them is written again. Hard cap: a write that would pass it reclaims first, and is refused if that
// does not help.
//
// Ownership: owns the open files and the lock. Files 0600, directories 0700.
// Threads:   see TierStore.
// Errors:    Open: of the file system, with what to do about them. FailedPrecondition: a directory of a later version.
//            Afterwards see TierStore; a lost or changed file is a miss for what was in it.
// Design:    DESIGN 8; docs/format/segment.md
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ledger.h"
#include "env/file_system.h"
#include "tier/codec.h"
#include "tier/tier_store.h"

namespace reprise {

struct DiskStoreOptions {
  std::string directory;
  Geometry geometry;
  uint64_t bytes_max = 0;                 // the cap, of everything under `directory`
  uint64_t segment_bytes = 256ull << 20;  // about; at most an eighth of bytes_max
  uint32_t blocks_max = 1 << 17;          // blocks and tails that the index holds; of more the least used give way
  Codec codec = Codec::kRaw;
  FileSystem* files = nullptr;                // null: RealFileSystem()
  std::function<uint64_t()> now_s = nullptr;  // wall clock, for what is written; null: the system's. May jump.
};

class DiskStore : public TierStore {
 public:
  // Memory of the index. Scratch (of each read at once: a header, a slot as kept, a codec's; of the writer: a record
  // and a slot that is moved) is in ThreadedTier's footprints.
  static Footprint FootprintOf(const DiskStoreOptions& options);

  struct Opened {
    std::unique_ptr<DiskStore> store;
    bool read_only = false;        // another process has the lock
    uint64_t cut_bytes = 0;        // of torn ends
    uint64_t foreign_records = 0;  // of another geometry, version or byte order: never served; go with their segments
    uint64_t damaged_records = 0;
    double seconds = 0;
  };
  static absl::StatusOr<Opened> Open(const DiskStoreOptions& options, Ledger& ledger);
  // For tests: aborts unless index, segments and sums agree. O(blocks_max).
  virtual void CheckIntegrity() const = 0;
};

// Checks everything under a directory, without a lock and without changing it: every header, key chain and checksum.
struct DiskReport {
  struct Problem {
    std::string file;
    uint64_t offset = 0;
    std::string what;
  };
  uint64_t segments = 0, records = 0, blocks = 0, tails = 0, bytes = 0;
  uint64_t torn_bytes = 0;  // at the end of a segment that was being written: not damage
  std::vector<Problem> problems;
};
absl::StatusOr<DiskReport> VerifyDisk(FileSystem& files, const std::string& directory,
                                      const std::function<void(double)>& progress);

// What lies in a directory, for people: per namespace, with how much and since when.
struct DiskListing {
  NamespaceDigests name_space;
  uint64_t records = 0, blocks = 0, tails = 0, bytes = 0;
  uint64_t tokens = 0;    // of group 0's pieces
  uint64_t newest_s = 0;  // when the newest segment with a record of it was begun, Unix time
};
absl::StatusOr<std::vector<DiskListing>> ListDisk(FileSystem& files, const std::string& directory);

// Reclaims dead bytes and what is over `bytes_max`, or forgets a tenant (by the digest of its namespace tag 8), with
// the lock: FailedPrecondition while a server has it.
absl::StatusOr<TierErased> CollectDisk(FileSystem& files, const std::string& directory, uint64_t bytes_max);
absl::StatusOr<TierErased> EraseDisk(FileSystem& files, const std::string& directory, const Digest& tenant);

}  // namespace reprise
