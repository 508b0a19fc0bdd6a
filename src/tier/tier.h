// The contract of a tier: a place farther away than the pool, asked for blocks without waiting. Reads and writes go
// through bounded queues to threads of the tier's own; every one has a deadline; a tier that fails again and again is
// left alone for a while (a breaker). It can only fail into a miss.
//
//   Contains, FindRun          what is there (no I/O)
//   Fetch(ticket, ..) -> Drain -> Fetched(payload) per piece, or its outcome at the deadline
//   Store(record)              copied before it returns, written behind, or declined
//   Erase(tenant), Flush       in the order of the stores before them
//
// Ownership: payloads that Drain shows belong to the tier and are gone when the visit returns: no slot of the caller's
// is ever
//            in the hands of another thread, so nothing needs to stay pinned for a read that is late.
// Threads:   one caller, the engine's thread, but for stats() and SetWake's function, which the tier calls from its
// threads. Errors:    outcomes; a full queue is one (nothing is queued, the caller computes instead). Design:    DESIGN
// 8; docs/decisions/0012-tier-staging.md
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ledger.h"
#include "tier/tier_store.h"

namespace reprise {

using TierTicket = StrongId<struct TierTicketTag, uint64_t>;

struct TierFetched {
  TierTicket ticket;
  uint32_t index = 0;  // first_index + place in Fetch's `reads`
  TierOutcome outcome = TierOutcome::kMissing;
  std::span<const std::byte> payload;  // with kOk: SlotBytes of the group
  double service_ms = 0;               // of the read alone, without its wait in the queue
};

struct TierStats {
  std::string name;
  bool writable = false;
  TierUsage usage;
  struct Operation {
    uint64_t ok = 0, missing = 0, checksum_failed = 0, damaged = 0, error = 0, timeout = 0, declined = 0, cancelled = 0;
    uint64_t bytes = 0;  // of slots, of those that were ok
    double seconds = 0;  // of service, of those that were ok
  };
  Operation fetch, store, erase;
  uint64_t stores_queued = 0;  // accepted, not written yet
  enum class Breaker : uint8_t { kClosed, kOpen, kTrying };
  Breaker fetch_breaker = Breaker::kClosed, store_breaker = Breaker::kClosed;
  std::string last_error;
};

class Tier {
 public:
  using Clock = std::chrono::steady_clock;
  virtual ~Tier() = default;

  virtual std::string_view name() const = 0;
  virtual bool writable() const = 0;

  // As in TierStore; empty while the breaker of reads is open.
  virtual void Contains(const NamespaceId& name_space, std::span<const BlockKey> keys, std::span<uint32_t> groups) = 0;
  virtual std::optional<TierRun> FindRun(const NamespaceId& name_space, const Digest& parent,
                                         std::span<const TokenId> wanted, uint32_t groups, bool whole) = 0;
  virtual std::vector<NamespaceDigests> NamespacesWith(std::span<const TokenId> tokens) const = 0;

  // Queues reads, in this order; what they point to is copied. A ticket may have several calls. Each is shown once by
  // Drain, unless cancelled. False: the queue has no room for all of them, or the breaker is open; nothing is queued.
  virtual bool Fetch(TierTicket ticket, uint32_t first_index, std::span<const TierRead> reads,
                     Clock::time_point deadline) = 0;
  // Nothing of this ticket is shown any more.
  virtual void Cancel(TierTicket ticket) = 0;
  // Shows what has been read, and what has not been in time. Never waits. Returns how many were shown.
  virtual size_t Drain(const std::function<void(const TierFetched&)>& visit) = 0;

  // Whether a record of so many payload bytes would be taken now.
  virtual bool HasRoomFor(uint64_t payload_bytes) const = 0;
  enum class StoreOutcome : uint8_t { kAccepted, kDeclined };
  // Declined: no room to stage it, or the breaker of writes is open, or not writable.
  virtual StoreOutcome Store(const TierRecord& record) = 0;
  // `done` is called on a thread of the tier.
  virtual void Erase(const Digest& tenant, std::function<void(absl::StatusOr<TierErased>)> done) = 0;
  // Waits until what was accepted is written and durable, at most until the deadline. False: it was not.
  virtual bool Flush(Clock::time_point deadline) = 0;

  // Called, from any thread, whenever Drain may have something to show or Store may have room again. Not within a call
  // of the caller's.
  virtual void SetWake(std::function<void()> wake) = 0;
  virtual TierStats stats() const = 0;
};

}  // namespace reprise
