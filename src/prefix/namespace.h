// The namespace: one digest of everything but the tokens that a forward pass depends on, and of who
// may reuse its state. Two requests share a block only if their namespaces are equal.
//
// Ownership: values. Threads: any. Errors: none.
// Design:    DESIGN 4, docs/format/identity.md (every byte, with vectors)
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/geometry.h"
#include "base/hash.h"
#include "base/identity.h"

namespace reprise {

// The fields of a namespace; the values are written in front of each of them.
enum class NamespaceTag : uint8_t {
  kModel = 1,
  kTokenizer = 2,
  kAdapters = 3,
  kPosition = 4,
  kAttention = 5,
  kGeometry = 6,
  kNumerics = 7,
  kTenant = 8,
  kEpoch = 9,
  kSalt = 10,
};
inline constexpr size_t kNamespaceTags = 10;
std::string_view Name(NamespaceTag tag);  // "model"

// Changes whenever the bytes of a slot change their meaning (docs/format/block.md).
inline constexpr uint32_t kSlotLayoutVersion = 1;

// A namespace and what it was made of: comparing two of these names the field that differs.
struct NamespaceDigests {
  NamespaceId id;
  std::array<std::optional<Digest>, kNamespaceTags> tags;  // [tag - 1]; empty: the field is absent

  const std::optional<Digest>& tag(NamespaceTag which) const { return tags[static_cast<size_t>(which) - 1]; }
  friend bool operator==(const NamespaceDigests&, const NamespaceDigests&) = default;
};

// The bytes of the geometry field.
std::vector<std::byte> EncodeGeometry(const Geometry& geometry);

NamespaceDigests DeriveNamespace(const ComputationIdentity& identity, const Geometry& geometry, const Scope& scope);

}  // namespace reprise
