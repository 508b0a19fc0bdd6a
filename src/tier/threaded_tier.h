// A Tier made of a TierStore: threads, bounded queues, staging buffers, deadlines, breakers.
//
// Ownership: owns the store, the threads and the staging memory (from the ledger, in the constructor).
// Threads:   see Tier. `readers` threads read at once; one writes, erases and keeps house, at a lower priority.
// Errors:    see Tier. A read that hangs past its deadline is shown as kTimeout; its thread and buffer come back when
// it ends. Design:    DESIGN 8
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/ledger.h"
#include "tier/tier.h"

namespace reprise {

struct ThreadedTierOptions {
  uint64_t slot_bytes_max = 0;  // of any group
  uint32_t readers = 2;
  uint32_t read_buffers = 8;           // slots read and not drained
  uint32_t reads_max = 4096;           // queued
  uint64_t store_bytes = 64ull << 20;  // staged and not written; at least one slot
  uint32_t stores_max = 256;           // queued
  // A breaker opens after so many failures (errors, timeouts) in a row, first for `open_ms`, then twice as long each
  // time that the one operation which is tried after that fails too, up to `open_ms_max`.
  uint32_t failures_max = 5;
  uint32_t open_ms = 1000;
  uint32_t open_ms_max = 60'000;
  std::function<void(const std::string&)> log;  // once when a breaker opens or closes; called on any thread
};

std::vector<Footprint> ThreadedTierFootprints(std::string_view name, const ThreadedTierOptions& options);
std::unique_ptr<Tier> MakeThreadedTier(const ThreadedTierOptions& options, std::unique_ptr<TierStore> store,
                                       Ledger& ledger);

}  // namespace reprise
