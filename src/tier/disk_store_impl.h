// The disk store behind disk_store.h. Opening is in disk_store_open.cc, writing and erasing in disk_store_write.cc,
// reclaiming and housekeeping in disk_store_reclaim.cc, reading in disk_store.cc.
//
// Threads:   what `mutex_` guards, any; the rest belongs to the one thread that writes. The mutex is never held during
//            I/O.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tier/disk_index.h"
#include "tier/disk_store.h"
#include "tier/disk_store_erased.h"
#include "tier/disk_store_files.h"
#include "tier/record.h"
#include "tier/segment.h"

namespace reprise {

// Of a file named as a segment.
struct DiskSegment {
  uint64_t bytes = 0;
  uint64_t records = 0;
  uint64_t first_sequence = 0;  // 0 if that could not be read
  uint32_t epoch = 0;           // in which it was written
  bool later = false;           // of a later version: left alone
  bool unclear = false;         // holds what could not be read: whose it is is not known
  bool dirty = false;           // holds records of an erased tenant
  std::set<Digest> tenants;     // whose records it holds
};

class DiskStoreImpl final : public DiskStore {
 public:
  DiskStoreImpl(const DiskStoreOptions& options, Ledger& ledger);
  ~DiskStoreImpl() override;

  // Everything that Open says about itself goes to `opened`, but the store.
  absl::Status OpenDirectory(Opened& opened);

  std::string_view name() const override { return "disk"; }
  bool writable() const override { return writable_; }
  uint64_t slot_bytes(GroupId group) const override { return shapes_[group.value()].slot_bytes; }
  void Contains(const NamespaceId& name_space, std::span<const BlockKey> keys, std::span<uint32_t> groups) override;
  std::optional<TierRun> FindRun(const NamespaceId& name_space, const Digest& parent, std::span<const TokenId> wanted,
                                 uint32_t groups, bool whole) override;
  std::vector<NamespaceDigests> NamespacesWith(std::span<const TokenId> tokens) const override;
  TierOutcome Read(const TierRead& read, std::span<std::byte> out) override;
  absl::StatusOr<uint64_t> Write(const TierRecord& record) override;
  absl::StatusOr<TierErased> Erase(const Digest& tenant) override;
  bool Maintain() override;
  absl::Status Flush() override;
  TierUsage usage() const override;
  void CheckIntegrity() const override;

 private:
  // What one read needs; kept and used again.
  struct Scratch {
    std::vector<std::byte> header, kept, codec;
  };
  // A piece of the segment that is being reclaimed.
  struct Candidate {
    EntryId entry;
    GroupId group;
    uint32_t used = 0;
    DiskLocation location;
  };
  struct Reclaim {
    uint32_t segment = 0;  // 0: none
    std::vector<Candidate> pieces;
    size_t next = 0;
  };
  using Steady = std::chrono::steady_clock;

  // disk_store_open.cc
  absl::Status TakeLock();
  bool HasOurWords() const;
  absl::Status OpenContents(Opened& opened);
  absl::Status CheckVersion();
  absl::Status OpenErased(Opened& opened);
  absl::Status OpenSegments(Opened& opened);
  absl::Status OpenSegment(uint32_t number, Opened& opened);
  void CloseTorn(uint32_t number, const SegmentContents& contents, Opened& opened);
  void IndexRecord(uint32_t number, const SegmentRecord& record, DiskSegment& segment, Opened& opened);
  bool IsOurs(const RecordHeader& header) const;

  // disk_store.cc
  std::unique_ptr<Scratch> TakeScratch();
  void GiveScratch(std::unique_ptr<Scratch> scratch);
  // Reads and checks the piece at `location`; with kOk, `out` is filled. `forget`: it will not be any better next time.
  TierOutcome ReadPiece(const DiskLocation& location, const PieceName& name, GroupId group,
                        std::optional<uint32_t> first_token, std::span<std::byte> out, Scratch& scratch,
                        RecordHeader& header, bool& forget);
  void RefreshErased();

  // disk_store_write.cc
  absl::Status WriteRun(const TierRecord& record, bool make_room);
  absl::Status PersistErased();
  bool DiskIsFull() const;
  absl::Status MakeRoom(uint64_t record_bytes, uint64_t header_bytes);
  bool Fits(uint64_t record_bytes, uint64_t header_bytes, uint64_t slack) const;
  absl::Status EnsureSegment(uint64_t record_bytes, uint64_t header_bytes);
  absl::Status NewSegment();
  absl::Status Reestablish();
  void CloseActive();
  void NoteActive();
  void TakeSequence(const Digest& tenant);
  absl::Status Publish(const RecordHeader& header, uint64_t offset);
  void LowerCap();

  // disk_store_reclaim.cc
  bool BeginReclaim(std::optional<uint32_t> dirty);
  std::optional<uint32_t> PickVictim();
  void CollectPieces(bool all);
  bool StepReclaim();    // false: nothing is being reclaimed any more
  bool FinishReclaim();  // false: the file cannot be removed
  bool MovePiece(const Candidate& piece);
  bool ReclaimOne();
  bool RemoveSegment(uint32_t number);
  void ForgetSegment(uint32_t number);
  void DropLost();
  void LookAfterActive();
  void LookAfterFiles();
  void DropErased();
  void SyncIfDue();
  void RaiseCap();

  std::string Path(std::string_view name) const;
  uint64_t now_s() const;
  uint64_t UsedBytes() const;  // of all files
  uint64_t SlackBytes() const { return segment_bytes_ / 2; }
  // What may be needed besides records: the footer of the active segment, and `erased` written anew.
  uint64_t ReservedBytes() const;

  const DiskStoreOptions options_;
  FileSystem& files_;
  std::vector<RecordShape> shapes_;  // [groups]
  uint64_t slot_bytes_max_ = 0;
  uint64_t segment_bytes_ = 0;
  bool writable_ = false;           // constant after OpenDirectory
  std::unique_ptr<FileLock> lock_;  // null: read-only, or another process has taken the directory over
  std::string lock_words_;

  std::unique_ptr<SegmentWriter> active_;
  bool directory_synced_ = true;
  uint64_t next_sequence_ = 1;
  uint64_t next_number_ = 1;
  uint64_t other_bytes_ = 0;  // of files that are no segments and not `erased`; changed with the mutex held
  uint64_t cap_bytes_ = 0;    // at most options_.bytes_max; changed with the mutex held
  uint64_t written_in_epoch_ = 0;
  Reclaim reclaim_;
  std::set<uint32_t> stuck_;  // cannot be removed, for now
  Steady::time_point synced_at_, raised_at_;
  uint64_t damaged_seen_ = 0;
  EncodedRecord encoded_, encoded_moving_;
  std::vector<std::byte> moving_;  // a slot

  mutable std::mutex mutex_;
  DiskIndex index_;                                // guarded by mutex_
  std::map<uint32_t, DiskSegment> segments_;       // guarded by mutex_; changed by the writing thread alone
  std::set<uint32_t> lost_;                        // guarded by mutex_; whose files are not there any more
  ErasedTenants erased_;                           // guarded by mutex_
  Steady::time_point erased_read_at_;              // guarded by mutex_
  uint32_t epoch_ = 2;                             // guarded by mutex_
  uint64_t evicted_ = 0, damaged_ = 0;             // guarded by mutex_
  std::vector<std::unique_ptr<Scratch>> scratch_;  // guarded by mutex_
};

}  // namespace reprise
