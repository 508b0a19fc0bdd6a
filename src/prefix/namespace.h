// The namespace: one digest of everything but the tokens that a forward pass depends on, and of who
// may reuse its state. Two requests share a block only if their namespaces are equal.
//
// Ownership: values. Threads: any. Errors: none.
// Design:    DESIGN 4, docs/format/identity.md (every byte, with vectors)
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/geometry.h"
#include "base/hash.h"
#include "base/identity.h"

namespace reprise {

// Changes whenever the bytes of a slot change their meaning (docs/format/block.md).
inline constexpr uint32_t kSlotLayoutVersion = 1;

// The bytes of the geometry field.
std::vector<std::byte> EncodeGeometry(const Geometry& geometry);

NamespaceDigests DeriveNamespace(const ComputationIdentity& identity, const Geometry& geometry, const Scope& scope);

// The shared scope's: tenant, epoch and salt are absent, so no tenant's is equal to it, whatever the tenant's name.
NamespaceDigests DeriveSharedNamespace(const ComputationIdentity& identity, const Geometry& geometry);

}  // namespace reprise
