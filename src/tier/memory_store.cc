#include "tier/memory_store.h"

#include <algorithm>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace reprise {
namespace {

class MemoryStore : public TierStore {
 public:
  MemoryStore(const Geometry& geometry, uint64_t bytes_max) : geometry_(geometry), bytes_max_(bytes_max) {
    CHECK_LE(geometry.groups.size(), kTierGroupsMax);
  }

  std::string_view name() const override { return "memory"; }
  bool writable() const override { return true; }
  uint64_t slot_bytes(GroupId group) const override { return SlotBytes(geometry_, group); }

  void Contains(const NamespaceId& name_space, std::span<const BlockKey> keys, std::span<uint32_t> groups) override {
    const std::lock_guard lock(mutex_);
    std::fill(groups.begin(), groups.end(), 0);
    for (size_t i = 0; i < keys.size(); ++i)
      for (const auto& [piece, bytes] : pieces_)
        if (piece.name_space == name_space && piece.key == keys[i]) groups[i] |= 1u << piece.group;
  }

  std::optional<TierRun> FindRun(const NamespaceId& name_space, const Digest& parent, std::span<const TokenId> wanted,
                                 uint32_t groups, bool whole) override {
    const std::lock_guard lock(mutex_);
    std::optional<TierRun> best;
    for (const auto& [piece, bytes] : pieces_) {
      if (piece.name_space != name_space || piece.parent != parent || !HasGroups(piece, groups)) continue;
      const size_t most = std::min(piece.tokens.size(), wanted.size());
      const auto run = static_cast<uint32_t>(
          std::mismatch(piece.tokens.begin(), piece.tokens.begin() + static_cast<std::ptrdiff_t>(most), wanted.begin())
              .first -
          piece.tokens.begin());
      if (run == 0 || (best && run <= best->run)) continue;
      if (whole && (piece.key || run < piece.tokens.size())) continue;
      best = TierRun{.run = run, .tokens = piece.tokens, .key = piece.key};
    }
    return best;
  }

  std::vector<NamespaceDigests> NamespacesWith(std::span<const TokenId> tokens) const override {
    const std::lock_guard lock(mutex_);
    tokens = tokens.first(std::min<size_t>(tokens.size(), geometry_.block_tokens));
    std::vector<NamespaceDigests> found;
    for (const auto& [piece, bytes] : pieces_) {
      if (piece.parent != piece.name_space.digest || piece.tokens.size() < tokens.size()) continue;
      if (!std::equal(tokens.begin(), tokens.end(), piece.tokens.begin())) continue;
      if (found.empty() || found.back().id != piece.name_space) found.push_back(digests_.at(piece.name_space));
    }
    return found;
  }

  TierOutcome Read(const TierRead& read, std::span<std::byte> out) override {
    const std::lock_guard lock(mutex_);
    const auto at = pieces_.find(Piece{.name_space = read.name_space,
                                       .parent = read.parent,
                                       .tokens = {read.tokens.begin(), read.tokens.end()},
                                       .key = read.key,
                                       .group = read.group.value()});
    if (at == pieces_.end()) return TierOutcome::kMissing;
    CHECK_EQ(out.size(), at->second.size());
    std::copy(at->second.begin(), at->second.end(), out.begin());
    return TierOutcome::kOk;
  }

  absl::StatusOr<uint64_t> Write(const TierRecord& record) override {
    const std::lock_guard lock(mutex_);
    uint64_t written = 0;
    const size_t block_tokens = geometry_.block_tokens;
    for (size_t i = 0; i < record.payloads.size(); ++i) {
      const bool tail = record.keys.empty();
      const std::span<const TokenId> tokens =
          tail ? record.tokens : record.tokens.subspan(i * block_tokens, block_tokens);
      Piece piece{.name_space = record.name_space.id,
                  .parent = i == 0 ? record.parent : record.keys[i - 1].digest,
                  .tokens = {tokens.begin(), tokens.end()},
                  .key = tail ? std::nullopt : std::optional(record.keys[i]),
                  .group = record.group.value()};
      if (pieces_.contains(piece)) continue;
      const std::span<const std::byte> bytes = record.payloads[i];
      if (bytes.size() > bytes_max_) return absl::ResourceExhaustedError("the record is larger than the tier");
      while (bytes_ + bytes.size() > bytes_max_) {
        Forget(pieces_.find(oldest_.front()));
        ++evicted_;
      }
      digests_.emplace(record.name_space.id, record.name_space);
      bytes_ += bytes.size();
      oldest_.push_back(piece);
      pieces_.emplace(std::move(piece), std::vector<std::byte>(bytes.begin(), bytes.end()));
      ++written;
    }
    return written;
  }

  absl::StatusOr<TierErased> Erase(const Digest& tenant) override {
    const std::lock_guard lock(mutex_);
    TierErased erased;
    for (auto at = pieces_.begin(); at != pieces_.end();) {
      const auto next = std::next(at);
      if (digests_.at(at->first.name_space).tag(NamespaceTag::kTenant) == tenant) {
        ++erased.blocks;
        erased.bytes += at->second.size();
        Forget(at);
      }
      at = next;
    }
    return erased;
  }

  bool Maintain() override { return false; }
  absl::Status Flush() override { return absl::OkStatus(); }

  TierUsage usage() const override {
    const std::lock_guard lock(mutex_);
    TierUsage usage{.bytes = bytes_, .bytes_max = bytes_max_, .bytes_live = bytes_, .evicted_blocks = evicted_};
    usage.records = usage.blocks = pieces_.size();
    for (const auto& [piece, bytes] : pieces_) usage.tails += !piece.key;
    usage.namespaces = digests_.size();
    return usage;
  }

 private:
  struct Piece {
    NamespaceId name_space;
    Digest parent;
    std::vector<TokenId> tokens;
    std::optional<BlockKey> key;
    uint32_t group = 0;
    friend auto operator<=>(const Piece&, const Piece&) = default;
  };

  bool HasGroups(Piece piece, uint32_t groups) const {
    for (piece.group = 0; piece.group < geometry_.groups.size(); ++piece.group)
      if ((groups >> piece.group & 1) != 0 && !pieces_.contains(piece)) return false;
    return true;
  }
  void Forget(std::map<Piece, std::vector<std::byte>>::iterator at) {
    bytes_ -= at->second.size();
    oldest_.remove(at->first);
    pieces_.erase(at);
  }

  const Geometry geometry_;
  const uint64_t bytes_max_;
  mutable std::mutex mutex_;
  std::map<Piece, std::vector<std::byte>> pieces_;
  std::list<Piece> oldest_;
  std::map<NamespaceId, NamespaceDigests> digests_;
  uint64_t bytes_ = 0;
  uint64_t evicted_ = 0;
};

}  // namespace

std::unique_ptr<TierStore> MakeMemoryStore(const Geometry& geometry, uint64_t bytes_max) {
  return std::make_unique<MemoryStore>(geometry, bytes_max);
}

}  // namespace reprise
