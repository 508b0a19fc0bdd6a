// What a tier keeps and how it is asked for, without threads or waiting rooms: a store of blocks and tails in memory
// (memory_store.h), on disk (disk_store.h), or either with faults (faulty_store.h). A Tier (tier.h) puts queues,
// deadlines and a breaker around one.
//
// A piece is the bytes of one slot: one block of one layer group, or the tail of a sequence in one group. It is named
// by namespace, group, what its prefix was (`parent`: the key of the block before it, or the digest that its chain
// begins with) and its own tokens. A store finds nothing under less than all of these, compared in full.
//
// Safe: a store never changes a value, never gives what it is not sure of, and only ever fails into a miss.
//
// Ownership: values and spans; nothing that is passed in is kept.
// Threads:   Contains, FindRun, Read, NamespacesWith, usage: any, at once. Write, Erase, Maintain, Flush: one thread.
// Errors:    a TierOutcome for reads, a Status for what changes the store. Nothing aborts on what a file holds.
// Design:    DESIGN 4, 8; docs/format/record.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/geometry.h"
#include "base/hash.h"
#include "base/identity.h"
#include "base/ids.h"

namespace reprise {

enum class TierOutcome : uint8_t {
  kOk,
  kMissing,   // not there, or not any more
  kChecksum,  // the payload is not what was written
  kDamaged,   // the record around it is not one, or is another one's
  kError,     // the place where it is kept said no (EIO, a lost file)
  kTimeout,   // given by Tier, not by a store
};
std::string_view Name(
    TierOutcome outcome);  // "ok" "missing" "checksum_failed" "record_damaged" "tier_error" "tier_timeout"

// Consecutive blocks of one group under one prefix, or one tail.
struct TierRecord {
  const NamespaceDigests& name_space;
  GroupId group;
  Digest parent;                                         // of the first block
  uint32_t first_token = 0;                              // its position in the prompt
  std::span<const BlockKey> keys;                        // [blocks]; empty: a tail
  std::span<const TokenId> tokens;                       // [blocks * block_tokens]; of a tail 0 < tokens < block_tokens
  std::span<const std::span<const std::byte>> payloads;  // [blocks], or 1 of a tail; SlotBytes each
};

struct TierRead {
  NamespaceId name_space;
  GroupId group;
  Digest parent;
  uint32_t first_token = 0;
  std::optional<BlockKey> key;      // of a block; a tail has none
  std::span<const TokenId> tokens;  // all of its tokens
};

// The block or tail under a parent that has the longest common run of tokens with what was asked for.
struct TierRun {
  uint32_t run = 0;             // > 0
  std::vector<TokenId> tokens;  // all of its own
  std::optional<BlockKey> key;  // absent: a tail
};

struct TierUsage {
  uint64_t bytes = 0;      // on the medium, dead ones and headers included
  uint64_t bytes_max = 0;  // the cap
  uint64_t bytes_live = 0;
  uint64_t records = 0;
  uint64_t blocks = 0;  // pieces, tails included
  uint64_t tails = 0;
  uint64_t segments = 0;
  uint64_t namespaces = 0;
  uint64_t evicted_blocks = 0;  // since the start: to make room
  uint64_t damaged = 0;         // found since the start, whatever the kind
};

struct TierErased {
  uint64_t blocks = 0;
  uint64_t bytes = 0;
};

class TierStore {
 public:
  virtual ~TierStore() = default;

  virtual std::string_view name() const = 0;  // "disk"; label of metrics and receipts
  // False: opened beside another process that writes; Write, Erase and Maintain are not called.
  virtual bool writable() const = 0;
  // Of one piece of this group.
  virtual uint64_t slot_bytes(GroupId group) const = 0;

  // [keys.size()]: bit g of an entry is set when group g of that block is there. From what is in memory; does no I/O.
  // What it finds counts as used. At most kTierGroupsMax groups.
  virtual void Contains(const NamespaceId& name_space, std::span<const BlockKey> keys, std::span<uint32_t> groups) = 0;

  // Of the blocks and tails under `parent` that are there in every group of the bitmap `groups`, the one with the
  // longest common run with `wanted`. `whole`: only tails all of whose tokens are that run (states cannot be cut). No
  // I/O.
  virtual std::optional<TierRun> FindRun(const NamespaceId& name_space, const Digest& parent,
                                         std::span<const TokenId> wanted, uint32_t groups, bool whole) = 0;

  // The namespaces, this one or others, under which a first block or tail is there that begins with all of `tokens`
  // (at most block_tokens of them count). No I/O.
  virtual std::vector<NamespaceDigests> NamespacesWith(std::span<const TokenId> tokens) const = 0;

  // Fills `out` (SlotBytes of the group) with the piece. All that the record says is compared with all that was asked
  // for, and every checksum is checked, before kOk. On anything else `out` may hold anything. What is found damaged is
  // forgotten.
  virtual TierOutcome Read(const TierRead& read, std::span<std::byte> out) = 0;

  // Keeps the record, making room within the cap. Pieces that are there already are not written twice. Published (found
  // by Contains) when it returns, not before it is complete. Returns how many were written. ResourceExhausted,
  // PermissionDenied, Unavailable: not kept.
  virtual absl::StatusOr<uint64_t> Write(const TierRecord& record) = 0;

  // Forgets all that a tenant stored, by the digest of its namespace tag 8; durable when it returns.
  virtual absl::StatusOr<TierErased> Erase(const Digest& tenant) = 0;

  // A piece of housekeeping (reclaiming, syncing), at most some 10 ms of it. False: nothing was left to do.
  virtual bool Maintain() = 0;
  // All that was written survives a power cut when it returns.
  virtual absl::Status Flush() = 0;

  virtual TierUsage usage() const = 0;
};

inline constexpr uint32_t kTierGroupsMax = 32;

}  // namespace reprise
