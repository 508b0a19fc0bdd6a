#include "server/prefix_ids.h"

#include <algorithm>

namespace reprise {
namespace {

void Add(Sha256& hash, const Digest& digest) { hash.Update(std::as_bytes(std::span(digest.bytes))); }

}  // namespace

std::vector<uint64_t> PrefixIds(const Digest& key, const Scope& scope, std::span<const TokenId> tokens) {
  Sha256 hash;
  Add(hash, key);
  Add(hash, Sha256::Of(scope.tenant));
  if (scope.salt) Add(hash, Sha256::Of(*scope.salt));
  std::vector<uint64_t> ids;
  for (Digest last = hash.Finish(); !tokens.empty();) {
    const std::span<const TokenId> block = tokens.first(std::min<size_t>(tokens.size(), kPrefixIdTokens));
    Add(hash, last);
    hash.Update(std::as_bytes(block));
    last = hash.Finish();
    ids.push_back(TableHash(last) >> 11);
    tokens = tokens.subspan(block.size());
  }
  return ids;
}

}  // namespace reprise
