// What decides whether KV state is the same computation, and who may reuse it: the fields of a
// namespace before they are hashed (docs/format/identity.md gives every byte).
//
// Ownership: values. Threads: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

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

}  // namespace reprise
