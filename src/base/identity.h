// What decides whether KV state is the same computation, and who may reuse it: the fields of a
// namespace before they are hashed (docs/format/identity.md gives every byte).
//
// Ownership: values. Threads: any.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/hash.h"

namespace reprise {

// Everything but the tokens that the forward pass depends on. `position`, `attention`, `numerics` and
// `adapters` are canonical encodings made by the model; the geometry is added by the cache.
struct ComputationIdentity {
  Digest model;           // tensors and metadata
  Digest tokenizer;       // vocabulary, merges, scores, special tokens, pre-tokenizer
  std::string adapters;   // ordered (content digest, scale) list; empty: none
  std::string position;   // resolved RoPE
  std::string attention;  // windows per layer, soft caps, scale, mask
  std::string numerics;   // versions of the kernels in use
};

// Who may reuse it. Made by the server from the credential, but for the salt.
struct Scope {
  std::string tenant;
  uint64_t epoch = 0;
  std::optional<std::string> salt = std::nullopt;  // the client's; absent and empty are different
};

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

// A namespace and what it was made of: comparing two of these names the field that differs.
struct NamespaceDigests {
  NamespaceId id;
  std::array<std::optional<Digest>, kNamespaceTags> tags;  // [tag - 1]; empty: the field is absent
  // The shared scope of the same computation, where prefixes are that an operator declared to be everyone's. Absent:
  // nothing is shared. No part of what the namespace is.
  std::optional<NamespaceId> shared = std::nullopt;

  const std::optional<Digest>& tag(NamespaceTag which) const { return tags[static_cast<size_t>(which) - 1]; }
  friend bool operator==(const NamespaceDigests& a, const NamespaceDigests& b) {
    return a.id == b.id && a.tags == b.tags;
  }
};

}  // namespace reprise
