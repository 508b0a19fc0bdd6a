// The index of a disk store: which pieces are where, in memory of a fixed size. An entry is one block or one tail, with
// a place for each layer group. Entries are found by their key, or by what they hang under and their tokens; the ones
// under the same parent are in the order of their tokens, blocks and tails together. When it is full, the entry that
// was used least recently gives way.
//
// Ownership: owns its memory, from the ledger in the constructor; what it keeps about segments is a small map beside
// it. Threads:   those of its owner's lock. No method does I/O; all are O(log entries) at most unless said. Errors: a
// full index is an outcome of Put; misuse aborts. Design:    DESIGN 8
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/carver.h"
#include "base/hash.h"
#include "base/identity.h"
#include "base/ids.h"
#include "base/ledger.h"
#include "base/treap.h"
#include "tier/tier_store.h"

namespace reprise {

struct DiskIndexOptions {
  uint32_t block_tokens = 0;
  uint32_t groups = 0;
  uint32_t entries_max = 0;
  uint32_t namespaces_max = 4096;
};

using EntryId = StrongId<struct DiskEntryTag, uint32_t>;
inline constexpr EntryId kNoEntry{UINT32_MAX};

// What a piece is called, its group apart.
struct PieceName {
  const NamespaceId& name_space;
  const Digest& parent;
  const BlockKey* key;  // null: a tail
  std::span<const TokenId> tokens;
};

struct DiskLocation {
  uint64_t offset = 0;        // of the record, in its segment
  uint32_t segment = 0;       // 0: nowhere
  uint32_t bytes = 0;         // of the payload as kept
  uint32_t header_bytes = 0;  // of the record's header
  uint32_t piece = 0;         // its index in the record
  friend bool operator==(const DiskLocation&, const DiskLocation&) = default;
};

class DiskIndex {
 public:
  static uint64_t FootprintBytes(const DiskIndexOptions& options);
  DiskIndex(const DiskIndexOptions& options, Ledger& ledger);

  // All of the name is compared.
  EntryId Find(const PieceName& name) const;
  // The namespace and the key alone.
  EntryId FindKey(const NamespaceId& name_space, const BlockKey& key) const;
  // Of the entries under `parent` that are there in all of `groups`: the longest common run with `wanted`; kUnusableMax
  // others are looked at on either side. `whole`: of the tails all of whose tokens are that run.
  EntryId FindRun(const NamespaceId& name_space, const Digest& parent, std::span<const TokenId> wanted, uint32_t groups,
                  bool whole) const;
  // As TierStore::NamespacesWith. O(namespaces).
  std::vector<NamespaceDigests> NamespacesWith(std::span<const TokenId> tokens) const;

  // Where a piece is from now on. An entry with the same key and another name gives way to it. False: the table of
  // namespaces is full of used ones, and nothing was changed but entries evicted to make room.
  bool Put(const NamespaceDigests& name_space, const PieceName& name, GroupId group, const DiskLocation& location,
           uint32_t epoch);
  // The piece is nowhere; its entry goes with its last piece.
  void Forget(EntryId id, GroupId group);

  void Touch(EntryId id, uint32_t epoch);

  // Ids are below this; Exists says which.
  uint32_t ids_end() const { return fresh_entries_; }
  bool Exists(EntryId id) const { return entry(id).kind != Kind::kFree; }
  bool IsTail(EntryId id) const { return entry(id).kind == Kind::kTail; }
  const Digest& parent(EntryId id) const { return entry(id).parent; }
  const BlockKey& key(EntryId id) const { return entry(id).key; }  // REQUIRES: no tail
  std::span<const TokenId> tokens(EntryId id) const;
  const NamespaceDigests& name_space(EntryId id) const { return namespaces_[entry(id).name_space].digests; }
  PieceName name(EntryId id) const;
  uint32_t groups(EntryId id) const { return entry(id).groups; }  // bitmap
  uint32_t used(EntryId id) const { return entry(id).used; }      // epoch of its last use; 0: never
  const DiskLocation& location(EntryId id, GroupId group) const { return locations_[At(id, group)]; }

  // Of the pieces in one segment.
  struct Live {
    uint64_t bytes = 0;
    uint32_t pieces = 0;
  };
  Live live(uint32_t segment) const;
  uint64_t live_bytes() const { return live_bytes_; }
  uint64_t pieces() const { return pieces_; }
  uint64_t tails() const { return tail_pieces_; }  // of `pieces`
  uint32_t namespaces() const { return namespace_count_; }
  uint64_t evicted_pieces() const { return evicted_pieces_; }

  // Aborts unless tables, order, lists and sums agree. O(entries).
  void CheckIntegrity() const;

  static constexpr uint32_t kUnusableMax = 64;

 private:
  enum class Kind : uint8_t { kFree = 0, kBlock, kTail };
  struct Entry {
    Digest parent;
    BlockKey key;               // zeros: a tail
    TreapLinks<EntryId> links;  // among those under the same parent
    EntryId newer, older;       // by last use; free: a list, `older`
    uint32_t name_space;        // index
    uint32_t used;
    uint32_t groups;
    uint16_t count;  // tokens
    Kind kind;
  };
  struct Namespace {
    NamespaceDigests digests;
    uint32_t entries;  // 0: free
    uint32_t next_free;
  };
  // Open addressing, at most half full: 0 is empty, else a value + 1.
  struct Table {
    std::span<uint32_t> slots;  // a power of two
    template <class Is>
    uint32_t* Find(size_t hash, Is is) const;
    void Add(size_t hash, uint32_t value) const;
    template <class Hasher>
    void Remove(uint32_t* slot, Hasher hash_of) const;
  };
  struct Layout {
    std::span<Entry> entries;
    std::span<TokenId> tokens;          // [entries_max][block_tokens]
    std::span<DiskLocation> locations;  // [entries_max][groups]
    std::span<uint32_t> keys;           // blocks by namespace and key
    std::span<uint32_t> tops;           // tops of the treaps by namespace and parent
    std::span<Namespace> namespaces;
    std::span<uint32_t> names;  // namespaces by id
    Layout(const DiskIndexOptions& options, Carver& carver);
  };
  struct LinksOf {
    std::span<Entry> entries;
    TreapLinks<EntryId>& operator()(EntryId id) const { return entries[id.value()].links; }
  };

  Entry& entry(EntryId id) { return entries_[id.value()]; }
  const Entry& entry(EntryId id) const { return entries_[id.value()]; }
  size_t At(EntryId id, GroupId group) const { return size_t{id.value()} * options_.groups + group.value(); }
  Treap<EntryId, LinksOf> siblings() const { return Treap<EntryId, LinksOf>(LinksOf{entries_}); }

  static size_t HashOf(uint32_t name_space, const Digest& digest);
  size_t KeyHash(uint32_t id) const { return HashOf(entries_[id].name_space, entries_[id].key.digest); }
  size_t ParentHash(uint32_t id) const { return HashOf(entries_[id].name_space, entries_[id].parent); }
  std::optional<uint32_t> FindNamespace(const NamespaceId& id) const;
  std::optional<uint32_t> AddNamespace(const NamespaceDigests& digests);
  void DropNamespace(uint32_t index);
  uint32_t* TopSlot(uint32_t name_space, const Digest& parent) const;
  EntryId Top(uint32_t name_space, const Digest& parent) const;
  EntryId LowerBound(EntryId top, std::span<const TokenId> tokens) const;
  EntryId FindWhole(EntryId top, std::span<const TokenId> wanted, uint32_t groups) const;
  EntryId AddEntry(uint32_t name_space, const PieceName& name);
  void Remove(EntryId id);
  void Evict(EntryId id);
  void Account(const Entry& owner, const DiskLocation& location, int sign);
  void Link(EntryId id);
  void Unlink(EntryId id);

  const DiskIndexOptions options_;
  Region region_;
  std::span<Entry> entries_;
  std::span<TokenId> tokens_;
  std::span<DiskLocation> locations_;
  Table keys_, tops_, names_;
  std::span<Namespace> namespaces_;
  EntryId free_ = kNoEntry, newest_ = kNoEntry, oldest_ = kNoEntry;
  uint32_t free_namespace_ = UINT32_MAX;
  uint32_t fresh_entries_ = 0, fresh_namespaces_ = 0;  // memory from these on was never touched
  uint32_t namespace_count_ = 0;
  uint64_t live_bytes_ = 0, pieces_ = 0, tail_pieces_ = 0, evicted_pieces_ = 0;
  std::unordered_map<uint32_t, Live> live_;
};

}  // namespace reprise
