#include "model/identity.h"

#include <ggml.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/check.h"

namespace reprise {
namespace {

bool StartsWith(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

// The shortest decimal that reads back to the same float.
std::string FloatText(float value) {
  std::array<char, 32> buffer;
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  CHECK(error == std::errc());
  return std::string(buffer.data(), end);
}

void UpdateNumber(Sha256& sha, uint64_t value) { sha.Update(std::as_bytes(std::span(&value, 1))); }

void UpdateFramed(Sha256& sha, std::string_view text) {
  UpdateNumber(sha, text.size());
  sha.Update(text);
}

void UpdateDigest(Sha256& sha, const Digest& digest) { sha.Update(std::as_bytes(std::span(digest.bytes))); }

void UpdateTensor(Sha256& sha, const TensorSource& tensor, const Digest& digest) {
  UpdateFramed(sha, tensor.name);
  UpdateNumber(sha, static_cast<uint64_t>(tensor.type));
  UpdateNumber(sha, tensor.rows);
  UpdateNumber(sha, tensor.cols);
  UpdateDigest(sha, digest);
}

// In the order of their names, whatever the file's is.
template <class Tensors>
void UpdateTensors(Sha256& sha, const Tensors& tensors, std::span<const Digest> digests) {
  CHECK_EQ(digests.size(), tensors.size());
  std::map<std::string_view, size_t> sorted;
  for (size_t i = 0; i < tensors.size(); ++i) sorted.emplace(tensors[i].name, i);
  for (const auto& [name, i] : sorted) UpdateTensor(sha, tensors[i], digests[i]);
}

// Keys in byte order with the digests of their values.
template <class Counts>
Digest DigestOfValues(const Gguf& gguf, std::string_view domain, Counts&& counts) {
  std::map<std::string_view, const GgufValue*> sorted;
  for (const GgufValue& value : gguf.values())
    if (counts(std::string_view(value.key))) sorted.emplace(value.key, &value);
  Sha256 sha;
  sha.Update(domain);
  for (const auto& [key, value] : sorted) {
    UpdateFramed(sha, key);
    UpdateDigest(sha, value->digest);
  }
  return sha.Finish();
}

bool IsChatTemplate(std::string_view key) { return StartsWith(key, "tokenizer.chat_template"); }

std::string RopeText(const RopeParameters& rope) {
  if (rope.type == RopeType::kNone) return "none";
  std::string out = absl::StrCat(rope.type == RopeType::kNeox ? "rope_neox" : "rope_normal", "/dims=", rope.dims,
                                 "/base=", FloatText(rope.base), "/scale=", FloatText(rope.scale));
  if (rope.attn_factor != 1.0f) absl::StrAppend(&out, "/attn_factor=", FloatText(rope.attn_factor));
  if (rope.ext_factor != 0.0f)
    absl::StrAppend(&out, "/yarn=", FloatText(rope.ext_factor), ",", FloatText(rope.beta_fast), ",",
                    FloatText(rope.beta_slow), ",", rope.original_context);
  if (!rope.factors.empty()) absl::StrAppend(&out, "/factors=", Sha256::Of(std::as_bytes(rope.factors)).Hex());
  return out;
}

}  // namespace

bool IsHarmlessKey(std::string_view key) {
  constexpr std::array<std::string_view, 17> kExact = {
      "general.name",        "general.basename",     "general.finetune", "general.size_label", "general.author",
      "general.version",     "general.organization", "general.url",      "general.repo_url",   "general.doi",
      "general.description", "general.quantized_by", "general.uuid",     "general.tags",       "general.languages",
      "general.file_type",   "general.alignment"};
  constexpr std::array<std::string_view, 7> kPrefixes = {
      "general.license",   "general.source.",   "general.base_model.",    "general.dataset",
      "general.sampling.", "quantize.imatrix.", "tokenizer.chat_template"};
  return std::find(kExact.begin(), kExact.end(), key) != kExact.end() ||
         std::any_of(kPrefixes.begin(), kPrefixes.end(), [&](std::string_view p) { return StartsWith(key, p); });
}

Digest MetadataDigest(const Gguf& gguf, std::string_view family_name) {
  const std::string rope = absl::StrCat(std::string(family_name), ".rope.");
  const std::string window = absl::StrCat(std::string(family_name), ".attention.sliding_window");
  return DigestOfValues(gguf, "reprise/metadata/1", [&](std::string_view key) {
    return !IsHarmlessKey(key) && !StartsWith(key, "tokenizer.") && !StartsWith(key, rope) && !StartsWith(key, window);
  });
}

Digest TokenizerDigest(const Gguf& gguf) {
  return DigestOfValues(gguf, "reprise/tokenizer/1",
                        [](std::string_view key) { return StartsWith(key, "tokenizer.") && !IsChatTemplate(key); });
}

std::string PositionText(const ModelDescription& model) {
  std::string out;
  for (const RopeParameters& rope : model.ropes) absl::StrAppend(&out, out.empty() ? "" : ";", RopeText(rope));
  if (model.ropes.size() < 2) return out;
  absl::StrAppend(&out, ";layers=");
  for (const LayerPlan& plan : model.layer_plans) absl::StrAppend(&out, plan.rope);
  return out;
}

std::string AttentionText(const ModelDescription& model) {
  std::string out = absl::StrCat("causal/scale=", FloatText(model.attention_scale));
  const bool windows = std::any_of(model.layer_plans.begin(), model.layer_plans.end(),
                                   [](const LayerPlan& plan) { return plan.window > 0; });
  if (!windows) return out;
  absl::StrAppend(&out, "/windows=");
  for (uint32_t l = 0; l < model.layers; ++l) absl::StrAppend(&out, l == 0 ? "" : ",", model.layer_plans[l].window);
  return out;
}

std::string NumericsText(const ModelDescription& model) {
  std::set<std::string_view> foreign;
  for (const TensorSource& tensor : model.tensors)
    if (tensor.matrix && !HasKernel(tensor.type)) foreign.insert(Name(tensor.type));
  std::string out = absl::StrCat(kNumericsVersion);
  for (const std::string_view name : foreign) absl::StrAppend(&out, "/ggml-", ggml_version(), "=", std::string(name));
  return out;
}

uint32_t ChunkRows(const TensorSource& tensor) {
  constexpr uint64_t kChunkBytes = 1 << 20;
  constexpr uint64_t kRows = 16;
  const uint64_t group_bytes = kRows * (tensor.bytes / tensor.rows);
  return static_cast<uint32_t>(kRows * std::max<uint64_t>(1, kChunkBytes / group_bytes));
}

Digest ModelDigest(const ModelDescription& model, std::span<const Digest> tensor_digests) {
  Sha256 sha;
  sha.Update("reprise/model/1");
  UpdateDigest(sha, model.metadata_digest);
  UpdateTensors(sha, model.tensors, tensor_digests);
  return sha.Finish();
}

Digest AdapterDigest(const AdapterDescription& adapter, std::span<const Digest> tensor_digests) {
  Sha256 sha;
  sha.Update("reprise/adapter/1");
  sha.Update(std::as_bytes(std::span(&adapter.alpha, 1)));
  UpdateTensors(sha, adapter.tensors, tensor_digests);
  return sha.Finish();
}

std::string AdaptersIdentity(std::span<const AdapterInfo> adapters, std::span<const AdapterUse> uses) {
  const auto takes_part = [](const AdapterUse& use) { return use.scale != 0; };
  const auto count = static_cast<uint32_t>(std::count_if(uses.begin(), uses.end(), takes_part));
  if (count == 0) return {};
  ByteWriter out;
  out.Put(count);
  for (const AdapterUse& use : uses) {
    if (!takes_part(use)) continue;
    CHECK_LT(use.adapter, adapters.size());
    out.PutBytes(std::as_bytes(std::span(adapters[use.adapter].content.bytes)));
    out.Put(use.scale);
  }
  return std::string(reinterpret_cast<const char*>(out.bytes().data()), out.bytes().size());
}

}  // namespace reprise
