// An engine of its own with reprise's cache: its "model" is a hash over all tokens so far, kept as the K and V of each
// token in the engine's memory. The cache says which slots hold what; their bytes never leave the engine.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "reprise/kv_cache.h"

using reprise::GroupId, reprise::KvCache, reprise::SlotId, reprise::TokenId;
constexpr uint32_t kBlockTokens = 8, kSlots = 64;

struct Memory : reprise::SlotMemory {
  std::vector<uint64_t> rows = std::vector<uint64_t>(kSlots * kBlockTokens);  // [slots][block_tokens]

  uint64_t* slot(SlotId id) { return &rows[id.value() * kBlockTokens]; }
  void CopyRows(GroupId, SlotId from, SlotId to, uint32_t count) override {
    std::printf("  (copied %u rows of a block)\n", count);
    std::copy_n(slot(from), count, slot(to));
  }
  void ClearRows(GroupId, SlotId id, uint32_t first) override {
    std::fill(slot(id) + first, slot(id) + kBlockTokens, 0);
  }
};

// Computes what is not cached of the prompt, at most 16 tokens at a time. Returns the hash of all of it.
uint64_t Run(KvCache& cache, Memory& memory, const reprise::NamespaceDigests& who, const std::vector<TokenId>& prompt,
             bool read = true) {
  const uint32_t size = static_cast<uint32_t>(prompt.size());
  reprise::CacheSequence sequence;
  if (cache.Admit({.name_space = who, .prompt = prompt, .tokens_max = size, .read = read}, sequence) !=
      KvCache::Outcome::kAdmitted)
    return 0;  // a real engine waits until other sequences have ended
  const uint32_t reused = sequence.length();
  uint64_t hash = 0;
  while (sequence.length() < size) {
    const uint32_t begin = sequence.length(), count = std::min(16u, size - begin);
    sequence.Prepare(count);
    const auto table = sequence.tables()[0];  // of the one layer group: the slot of each block
    const auto row = [&](uint32_t at) { return memory.slot(table[at / kBlockTokens]) + at % kBlockTokens; };
    for (uint32_t at = begin; at < begin + count; ++at) {
      hash = at == 0 ? 1 : *row(at - 1);  // what the tokens before left in memory, computed now or long ago
      *row(at) = hash = (hash ^ static_cast<uint32_t>(prompt[at].value())) * 0x9E3779B97F4A7C15u;
    }
    sequence.Commit(std::span(prompt).subspan(begin, count));
  }
  sequence.Finish();
  std::printf("%u of %u tokens reused, hash %016llx\n", reused, size, static_cast<unsigned long long>(hash));
  return hash;
}

int main() {
  Memory memory;
  reprise::KvCacheOptions options;
  options.geometry.groups = {{.layers = {0}, .kv_heads = 1, .key_dim = 2, .value_dim = 2}};
  options.geometry.block_tokens = kBlockTokens;
  options.identity.model = reprise::Sha256::Of("toy model 1");  // what decides the bits of K and V
  options.slots = {kSlots};
  options.sequences_max = 4, options.context_max = 128, options.in_flight_max = 16;
  options.memory = &memory;
  reprise::Ledger ledger(1 << 20);  // for the cache's own tables
  KvCache cache(options, ledger);
  const auto who = cache.Namespace({.tenant = "me"});

  std::vector<TokenId> prompt;
  for (int32_t i = 0; i < 28; ++i) prompt.push_back(TokenId(100 + i));
  Run(cache, memory, who, prompt);
  prompt.push_back(TokenId(7));
  Run(cache, memory, who, prompt);  // the next turn

  prompt[20] = TokenId(9);  // a fork, inside of a block
  const reprise::PrefixReport report = cache.Explain(who, prompt);
  std::printf("token %u: %s, asked %d, cached %d\n", report.fork, std::string(Name(report.match.reason)).c_str(),
              prompt[report.fork].value(), report.cached_token->value());
  const bool same = Run(cache, memory, who, prompt) == Run(cache, memory, who, prompt, /*read=*/false);
  std::printf("%s\n", same ? "the same as computed from nothing" : "NOT what it is when computed from nothing");
  return same ? 0 : 1;
}
