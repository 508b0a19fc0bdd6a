// A store that fails now and then, or takes its time: for tests. What it gives is right; it may give nothing.
//
// Ownership: owns the store that it stands before. Threads: see TierStore; SetFaults: any. Errors: the faults'.
// Design:    DESIGN 12
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <random>

#include "tier/tier_store.h"

namespace reprise {

struct StoreFaults {
  uint64_t seed = 1;
  uint32_t one_in = 0;                 // operations that fail, at random; 0: none, 1: all
  bool reads = true;                   // that reads fail too
  std::chrono::milliseconds delay{0};  // before each operation
};

class FaultyStore : public TierStore {
 public:
  FaultyStore(std::unique_ptr<TierStore> store, const StoreFaults& faults);
  void SetFaults(const StoreFaults& faults);

  std::string_view name() const override { return store_->name(); }
  bool writable() const override { return store_->writable(); }
  uint64_t slot_bytes(GroupId group) const override { return store_->slot_bytes(group); }
  void Contains(const NamespaceId& name_space, std::span<const BlockKey> keys, std::span<uint32_t> groups) override;
  std::optional<TierRun> FindRun(const NamespaceId& name_space, const Digest& parent, std::span<const TokenId> wanted,
                                 uint32_t groups, bool whole) override;
  std::vector<NamespaceDigests> NamespacesWith(std::span<const TokenId> tokens) const override;
  TierOutcome Read(const TierRead& read, std::span<std::byte> out) override;
  absl::StatusOr<uint64_t> Write(const TierRecord& record) override;
  absl::StatusOr<TierErased> Erase(const Digest& tenant) override;
  bool Maintain() override { return store_->Maintain(); }
  absl::Status Flush() override;
  TierUsage usage() const override { return store_->usage(); }

 private:
  bool Fails(bool read);  // after the delay

  const std::unique_ptr<TierStore> store_;
  std::mutex mutex_;
  StoreFaults faults_;
  std::mt19937_64 random_;
};

}  // namespace reprise
