// Codecs of tiers on what real models put into their slots: 512 tokens of documentation.
//
//   Encode/<model>/<type>   bytes of slots per second; `ratio` of them to what is kept
//   Decode/...                      the same, with the checksum that every read has
//   Copy/...                        memcpy of the same slots and their checksum: what raw costs
#include <benchmark/benchmark.h>

#include <cstring>
#include <map>

#include "base/check.h"
#include "base/crc32c.h"
#include "tests/corpus.h"
#include "tests/model_runner.h"
#include "tests/models.h"
#include "tier/codec.h"
#include "token/tokenizer.h"

namespace reprise {
namespace {

constexpr uint32_t kTokens = 512;
constexpr uint32_t kElementBytes = 2;

using Slots = std::vector<std::vector<std::byte>>;

Slots MakeSlots(const std::string& file, ElementType type) {
  Ledger ledger(UINT64_MAX);
  auto tokenizer = Tokenizer::Load(ModelPath(file), ledger);
  CHECK(tokenizer.ok());
  const LoadedModel model(ModelPath(file), type);
  ModelRunner runner(model, {.kv_type = type, .sequences_max = 1});
  std::vector<TokenId> tokens = (*tokenizer)->Encode(Corpus().substr(0, 8 * kTokens), true, false);
  CHECK_GE(tokens.size(), kTokens);
  tokens.resize(kTokens);
  runner.Feed(0, tokens, 256, kTokens - 1);
  const Geometry& geometry = model.description().geometry;
  Slots slots;
  for (uint32_t group = 0; group < geometry.groups.size(); ++group)
    for (uint32_t block = 0; block < kTokens / geometry.block_tokens; ++block) {
      const auto slot = runner.Slot(0, GroupId(group), block);
      slots.emplace_back(slot.begin(), slot.end());
    }
  return slots;
}

const Slots& SlotsOf(const std::string& file, ElementType type) {
  static std::map<std::pair<std::string, ElementType>, Slots> made;
  Slots& slots = made[{file, type}];
  if (slots.empty()) slots = MakeSlots(file, type);
  return slots;
}

uint64_t BytesOf(const Slots& slots) {
  uint64_t bytes = 0;
  for (const auto& slot : slots) bytes += slot.size();
  return bytes;
}

void Report(benchmark::State& state, const Slots& slots) {
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * BytesOf(slots)));
}

// As they are kept: what does not shrink is raw, and here left out.
Slots Encoded(const Slots& slots) {
  Slots out(slots.size());
  for (size_t i = 0; i < slots.size(); ++i) EncodePlanes(slots[i], kElementBytes, out[i]);
  return out;
}

void Encode(benchmark::State& state, const std::string& file, ElementType type) {
  const Slots& slots = SlotsOf(file, type);
  std::vector<std::byte> out;
  for (auto _ : state)
    for (const auto& slot : slots) {
      out.clear();
      EncodePlanes(slot, kElementBytes, out);
      benchmark::DoNotOptimize(Crc32c(out));
    }
  Report(state, slots);
  uint64_t kept = 0;
  const Slots encoded = Encoded(slots);
  for (size_t i = 0; i < slots.size(); ++i) kept += encoded[i].empty() ? slots[i].size() : encoded[i].size();
  state.counters["ratio"] = static_cast<double>(BytesOf(slots)) / static_cast<double>(kept);
}

void Decode(benchmark::State& state, const std::string& file, ElementType type) {
  const Slots& slots = SlotsOf(file, type);
  const Slots encoded = Encoded(slots);
  std::vector<std::byte> out, scratch;
  for (auto _ : state)
    for (size_t i = 0; i < slots.size(); ++i) {
      out.resize(slots[i].size());
      benchmark::DoNotOptimize(Crc32c(encoded[i]));
      if (!encoded[i].empty()) CHECK(DecodePlanes(encoded[i], kElementBytes, out, scratch));
    }
  Report(state, slots);
}

void Copy(benchmark::State& state, const std::string& file, ElementType type) {
  const Slots& slots = SlotsOf(file, type);
  std::vector<std::byte> out;
  for (auto _ : state)
    for (const auto& slot : slots) {
      out.resize(slot.size());
      benchmark::DoNotOptimize(Crc32c(slot));
      std::memcpy(out.data(), slot.data(), slot.size());
      benchmark::ClobberMemory();
    }
  Report(state, slots);
}

void RegisterAll() {
  for (const std::string& file : SmallModels())
    for (ElementType type : {ElementType::kF16, ElementType::kBf16}) {
      const std::string name = file.substr(0, file.find('-')) + "/" + std::string(Name(type));
      benchmark::RegisterBenchmark(("Encode/" + name).c_str(), Encode, file, type);
      benchmark::RegisterBenchmark(("Decode/" + name).c_str(), Decode, file, type);
      benchmark::RegisterBenchmark(("Copy/" + name).c_str(), Copy, file, type);
    }
}

}  // namespace
}  // namespace reprise

int main(int argc, char** argv) {
  reprise::RegisterAll();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
