// The reference: pieces in a map, found by comparing all of their name. What the other stores are held against, and a
// tier for tests.
//
// Ownership: owns its bytes. Threads, Errors: see TierStore. Over the cap, the oldest records go.
// Design:    DESIGN 8
#pragma once

#include <cstdint>
#include <memory>

#include "base/geometry.h"
#include "tier/tier_store.h"

namespace reprise {

std::unique_ptr<TierStore> MakeMemoryStore(const Geometry& geometry, uint64_t bytes_max);

}  // namespace reprise
