#include "tests/model_runner.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/check.h"

namespace reprise {
namespace {

template <class T>
T ValueOrDie(absl::StatusOr<T> result) {
  if (!result.ok()) CheckFailed(__FILE__, __LINE__, result.status().ToString());
  return *std::move(result);
}

}  // namespace

LoadedModel::LoadedModel(const std::string& path, ElementType kv_type, const std::vector<AdapterOptions>& adapters)
    : description_(ValueOrDie(
          ModelDescription::Read(path, {.key_type = kv_type, .value_type = kv_type, .adapters = adapters}))) {
  WorkerPool pool(2);
  weights_ = ValueOrDie(ModelWeights::Load(*description_, pool, ledger_, {}));
}

ModelRunner::ModelRunner(const LoadedModel& model, const RunnerOptions& options)
    : model_(model), options_(options), pool_(options.threads), sequences_(options.sequences_max) {
  const Geometry& geometry = model.description().geometry;
  CHECK(geometry.key_type == options.kv_type);
  const uint32_t blocks = static_cast<uint32_t>(CeilDiv(options.context_max, geometry.block_tokens));
  std::mt19937_64 random(options.slot_seed);
  for (uint32_t g = 0; g < geometry.groups.size(); ++g) {
    std::vector<SlotId> slots;
    for (uint32_t s = 0; s < blocks * options.sequences_max; ++s) slots.push_back(SlotId(s));
    std::shuffle(slots.begin(), slots.end(), random);
    regions_.push_back(ledger_.Take("kv", SlotBytes(geometry, GroupId(g)) * slots.size()));
    groups_.push_back({regions_.back().bytes().data(), static_cast<uint32_t>(slots.size())});
    // Slots as an earlier sequence would leave them: NaN in every type, so that a row read by mistake shows.
    std::fill(regions_.back().bytes().begin(), regions_.back().bytes().end(), std::byte{0xff});
    for (Sequence& sequence : sequences_) {
      sequence.slots.emplace_back(slots.end() - blocks, slots.end());
      slots.resize(slots.size() - blocks);
    }
  }
  for (Sequence& sequence : sequences_) {
    sequence.tables = sequence.slots;
    for (const auto& table : sequence.tables) sequence.views.push_back(table);
  }
  forward_ = std::make_unique<ForwardPass>(model.description(), model.weights(),
                                           ForwardOptions{.context_max = options.context_max,
                                                          .batch_rows_max = options.batch_rows_max,
                                                          .logits_rows_max = options.logits_rows_max,
                                                          .slices_max = options.slices_max,
                                                          .threads = options.threads},
                                           groups_, Compute{&pool_, options.isa}, ledger_);
}

void ModelRunner::HideWhatWindowsDoNotReach(Sequence& sequence) {
  const Geometry& geometry = model().geometry;
  for (uint32_t g = 0; g < geometry.groups.size(); ++g) {
    const LayerGroup& group = geometry.groups[g];
    const uint32_t reach = group.window == 0 ? UINT32_MAX : group.window - 1;
    const uint32_t first_seen = sequence.length > reach ? sequence.length - reach : 0;
    for (uint32_t b = 0; b < sequence.tables[g].size(); ++b)
      sequence.tables[g][b] = (b + 1) * geometry.block_tokens <= first_seen ? kNoSlot : sequence.slots[g][b];
  }
}

std::span<const float> ModelRunner::Step(std::span<const Part> parts) {
  std::vector<BatchSlice> slices;
  for (const Part& part : parts) {
    Sequence& sequence = sequences_[part.sequence];
    HideWhatWindowsDoNotReach(sequence);
    slices.push_back({part.tokens, sequence.length, sequence.views, part.logits_rows, part.adapters});
    sequence.length += static_cast<uint32_t>(part.tokens.size());
  }
  return ValueOrDie(forward_->Run({slices}));
}

std::vector<float> ModelRunner::Feed(uint32_t sequence, std::span<const TokenId> tokens, uint32_t slice,
                                     uint32_t first_wanted, std::span<const AdapterUse> adapters) {
  Restart(sequence);
  std::vector<float> out;
  for (uint32_t done = 0; done < tokens.size();) {
    const uint32_t rows = std::min<uint32_t>(slice, static_cast<uint32_t>(tokens.size()) - done);
    const uint32_t wanted = done + rows > first_wanted ? std::min(rows, done + rows - first_wanted) : 0;
    const Part part{sequence, tokens.subspan(done, rows), wanted, adapters};
    const std::span<const float> logits = Step({&part, 1});
    out.insert(out.end(), logits.begin(), logits.end());
    done += rows;
  }
  return out;
}

void ModelRunner::FlipKeyBit(uint32_t sequence, GroupId group, uint32_t position) {
  const KvLayerView layer = LayerView(model().geometry, group, groups_[group.value()], 0);
  std::byte* key = layer.Key(sequences_[sequence].slots[group.value()][position / layer.block_tokens]);
  // The first dimension of the first head: [block_tokens] values. The bit is the highest of the exponent, so
  // that quantised activations cannot hide it.
  const uint32_t bytes = ElementBytes(layer.key_type);
  std::byte* value = key + (position % layer.block_tokens) * bytes;
  value[bytes - 1] ^= std::byte{0x40};
}

std::span<const std::byte> ModelRunner::Slot(uint32_t sequence, GroupId group, uint32_t block) const {
  const uint64_t slot_bytes = SlotBytes(model().geometry, group);
  const SlotId slot = sequences_[sequence].slots[group.value()][block];
  return {groups_[group.value()].base + slot.value() * slot_bytes, slot_bytes};
}

}  // namespace reprise
