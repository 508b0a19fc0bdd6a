// Block keys: a chain of digests over a namespace and all tokens up to the end of a block, so that one
// key names one whole prefix.
//
// Ownership: a BlockHasher owns its hash state. Threads: one at a time per object. Does not allocate.
// Design:    DESIGN 4, docs/format/identity.md (every byte, with vectors)
#pragma once

#include <cstdint>
#include <span>

#include "base/hash.h"
#include "base/ids.h"

namespace reprise {

// Something other than text inside a block: what stands behind placeholder tokens.
struct BlockExtra {
  uint32_t offset = 0;  // of its first placeholder in the block
  Digest content;
};

class BlockHasher {
 public:
  // The key of the block of `tokens` whose prefix is `previous`: the key of the block before it, or
  // the namespace's digest for a first block. `extras` in order of their offsets.
  BlockKey Next(const Digest& previous, std::span<const TokenId> tokens, std::span<const BlockExtra> extras = {});

  // What the key of the first block after a shared prefix has as `previous`: `last` is the key of the prefix's last
  // block in the shared scope, `name_space` that of whoever goes on from it.
  Digest Reroot(const Digest& last, const NamespaceId& name_space);

 private:
  Sha256 hash_;
};

// Stands in for BlockHasher::Next in tests that force two prefixes under one key.
using BlockKeyFunction = BlockKey (*)(const Digest& previous, std::span<const TokenId> tokens);

}  // namespace reprise
