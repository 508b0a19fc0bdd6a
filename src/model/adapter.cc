#include "model/adapter.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "base/carver.h"
#include "base/check.h"
#include "model/gguf.h"
#include "model/identity.h"
#include "model/model_file.h"
#include "model/status_macros.h"
#include "model/weight_loader.h"

namespace reprise {
namespace {

constexpr std::string_view kSuffixA = ".lora_a";
constexpr std::string_view kSuffixB = ".lora_b";

// The halves of a pair in the file.
struct Halves {
  const GgufTensor* a = nullptr;
  const GgufTensor* b = nullptr;
};

std::string ShapeText(const GgufTensor& tensor) {
  std::string out = "[";
  for (uint32_t d = 0; d < tensor.dimensions; ++d) absl::StrAppend(&out, d == 0 ? "" : ", ", tensor.dims[d]);
  return out + "]";
}

std::string At(std::string_view tensor) { return absl::StrCat("tensor '", std::string(tensor), "': "); }

// A text that must be there with one value.
absl::Status Expect(const Gguf& gguf, std::string_view key, std::string_view wanted, std::string_view why) {
  ASSIGN_OR_RETURN(const std::optional<std::string> text, gguf.Text(key));
  if (text && *text == wanted) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(std::string(key), " is ",
                                                 text ? absl::StrCat("'", *text, "'") : "absent", ", must be '",
                                                 std::string(wanted), "': ", std::string(why)));
}

absl::Status CheckMetadata(const Gguf& gguf, const ModelDescription& model, AdapterDescription& adapter) {
  RETURN_IF_ERROR(Expect(gguf, "general.type", "adapter", "this is not an adapter's file"));
  RETURN_IF_ERROR(Expect(gguf, "adapter.type", "lora", "other adapters are not supported"));
  RETURN_IF_ERROR(
      Expect(gguf, "general.architecture", model.family_name, "the adapter was made for another family of models"));
  // Such an adapter takes part only behind certain tokens; applying it everywhere would be wrong.
  if (gguf.Find("adapter.alora.invocation_tokens") != nullptr)
    return absl::UnimplementedError("activated LoRA (adapter.alora.invocation_tokens) is not supported");
  constexpr float kAlphaMax = 1e6f;
  ASSIGN_OR_RETURN(const std::optional<float> alpha, gguf.Float("adapter.lora.alpha", 0.0f, kAlphaMax));
  adapter.alpha = alpha.value_or(0.0f);
  return absl::OkStatus();
}

// Pairs by the name of the matrix that they stand beside.
absl::StatusOr<std::map<std::string, Halves>> CollectPairs(const Gguf& gguf) {
  std::map<std::string, Halves> pairs;
  for (const GgufTensor& tensor : gguf.tensors()) {
    const std::string_view name = tensor.name;
    const bool is_a = name.ends_with(kSuffixA), is_b = name.ends_with(kSuffixB);
    if (!is_a && !is_b)
      return absl::UnimplementedError(absl::StrCat(
          At(name), "not one of a pair NAME.lora_a, NAME.lora_b; leaving it out would change the replies"));
    Halves& halves = pairs[std::string(name.substr(0, name.size() - kSuffixA.size()))];
    (is_a ? halves.a : halves.b) = &tensor;
  }
  if (pairs.empty()) return absl::InvalidArgumentError("the file has no tensors");
  for (const auto& [name, halves] : pairs)
    if (halves.a == nullptr || halves.b == nullptr)
      return absl::InvalidArgumentError(absl::StrCat(At(name + std::string(halves.a == nullptr ? kSuffixA : kSuffixB)),
                                                     "is missing, its other half is there"));
  return pairs;
}

const TensorSource* FindMatrix(const ModelDescription& model, const std::string& name) {
  for (const TensorSource& tensor : model.tensors)
    if (tensor.name == name) return &tensor;
  return nullptr;
}

absl::StatusOr<TensorSource> CheckHalf(const GgufTensor& tensor, const TensorSource& beside, uint64_t rows,
                                       uint64_t cols) {
  const bool same = tensor.dims[0] == cols && tensor.dims[1] == rows && tensor.dims[2] == 1 && tensor.dims[3] == 1;
  if (!same)
    return absl::InvalidArgumentError(absl::StrCat(At(tensor.name), "shape ", ShapeText(tensor), " must be [", cols,
                                                   ", ", rows, "] beside the model's [", beside.cols, ", ", beside.rows,
                                                   "]"));
  const WeightType type = static_cast<WeightType>(tensor.type);
  if (!HasKernel(type) || !Multipliable(type, static_cast<uint32_t>(cols)))
    return absl::UnimplementedError(absl::StrCat(At(tensor.name), "type ", std::string(Name(type)), " with rows of ",
                                                 cols, " is not supported; F32, F16 and BF16 always are"));
  return TensorSource{.name = tensor.name,
                      .part = beside.part,
                      .layer = beside.layer,
                      .matrix = true,
                      .type = type,
                      .rows = static_cast<uint32_t>(rows),
                      .cols = static_cast<uint32_t>(cols),
                      .offset = tensor.offset,
                      .bytes = tensor.bytes};
}

absl::Status AddPair(const std::string& name, const Halves& halves, const ModelDescription& model,
                     AdapterDescription& adapter) {
  const TensorSource* matrix = FindMatrix(model, name);
  if (matrix == nullptr)
    return absl::InvalidArgumentError(
        absl::StrCat(At(halves.a->name), "the model has no '", name, "'; the adapter was made for another model"));
  if (!matrix->matrix || matrix->part == Part::kEmbedding)
    return absl::UnimplementedError(absl::StrCat(At(halves.a->name), "adapters of ",
                                                 matrix->matrix ? "the embedding" : "vectors", " are not supported"));
  const uint64_t rank = halves.a->dims[1];
  if (rank < 1 || rank > kAdapterRankMax)
    return absl::InvalidArgumentError(
        absl::StrCat(At(halves.a->name), "rank ", rank, " must be 1 to ", kAdapterRankMax));
  ASSIGN_OR_RETURN(TensorSource a, CheckHalf(*halves.a, *matrix, rank, matrix->cols));
  ASSIGN_OR_RETURN(TensorSource b, CheckHalf(*halves.b, *matrix, matrix->rows, rank));
  adapter.rank_max = std::max(adapter.rank_max, static_cast<uint32_t>(rank));
  adapter.tensors.push_back(std::move(a));
  adapter.tensors.push_back(std::move(b));
  return absl::OkStatus();
}

std::string StemOf(const std::string& path) {
  const std::string file = path.substr(path.find_last_of('/') + 1);
  const size_t dot = file.rfind(".gguf");
  return dot == std::string::npos || dot == 0 ? file : file.substr(0, dot);
}

absl::Status Named(const std::string& path, const absl::Status& status) {
  const std::string message(status.message());
  const bool names_itself = message.rfind(path, 0) == 0;
  return absl::Status(status.code(), names_itself ? message : absl::StrCat("adapter ", path, ": ", message));
}

}  // namespace

absl::Status DescribeAdapter(const ByteSource& source, const ModelDescription& model, AdapterDescription& adapter) {
  ASSIGN_OR_RETURN(const Gguf gguf, Gguf::Parse(source));
  RETURN_IF_ERROR(CheckMetadata(gguf, model, adapter));
  ASSIGN_OR_RETURN(const auto pairs, CollectPairs(gguf));
  for (const auto& [name, halves] : pairs) RETURN_IF_ERROR(AddPair(name, halves, model, adapter));
  return absl::OkStatus();
}

absl::StatusOr<AdapterDescription> ReadAdapter(const AdapterOptions& options, const ModelDescription& model) {
  if (!(std::fabs(options.scale) <= kAdapterScaleLimit))
    return absl::InvalidArgumentError(absl::StrCat("adapter ", options.path, ": scale ", options.scale,
                                                   " must be from ", -kAdapterScaleLimit, " to ", kAdapterScaleLimit));
  const auto file = ModelFile::Open(options.path);
  if (!file.ok()) return Named(options.path, file.status());
  AdapterDescription adapter{
      .path = options.path, .name = StemOf(options.path), .stamp = (*file)->stamp(), .scale = options.scale};
  absl::Status status = DescribeAdapter(**file, model, adapter);
  if (status.ok()) status = (*file)->CheckUnchanged(adapter.stamp);
  if (!status.ok()) return Named(options.path, status);
  return adapter;
}

absl::StatusOr<std::vector<AdapterDescription>> ReadAdapters(const std::vector<AdapterOptions>& options,
                                                             const ModelDescription& model) {
  if (options.size() > kAdaptersMax)
    return absl::InvalidArgumentError(
        absl::StrCat(options.size(), " adapters; at most ", kAdaptersMax, " may be loaded"));
  std::vector<AdapterDescription> adapters;
  for (const AdapterOptions& option : options) {
    ASSIGN_OR_RETURN(AdapterDescription adapter, ReadAdapter(option, model));
    for (const AdapterDescription& other : adapters)
      if (other.name == adapter.name)
        return absl::InvalidArgumentError(absl::StrCat("adapters ", other.path, " and ", adapter.path,
                                                       " would both be called '", adapter.name, "'; rename one file"));
    adapters.push_back(std::move(adapter));
  }
  return adapters;
}

struct AdapterWeights::Layout {
  std::vector<std::span<std::byte>> packed;  // [tensors]

  Layout(const AdapterDescription& adapter, Carver& carver) {
    for (const TensorSource& tensor : adapter.tensors)
      packed.push_back(carver.Array<std::byte>(PackedBytes(tensor.type, tensor.rows, tensor.cols)));
  }
};

Footprint AdapterWeights::FootprintOf(const AdapterDescription& adapter) {
  return {absl::StrCat("adapter ", adapter.name), Measure<Layout>(adapter)};
}

absl::StatusOr<std::unique_ptr<AdapterWeights>> AdapterWeights::Load(const AdapterDescription& adapter,
                                                                     WorkerPool& pool, Ledger& ledger) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ModelFile> file, ModelFile::Open(adapter.path));
  RETURN_IF_ERROR(file->CheckUnchanged(adapter.stamp));
  std::unique_ptr<AdapterWeights> weights(new AdapterWeights());
  const Footprint footprint = FootprintOf(adapter);
  weights->region_ = ledger.Take(footprint.component, footprint.bytes);
  const Layout layout = Carve<Layout>(weights->region_, adapter);
  ASSIGN_OR_RETURN(const std::vector<Digest> digests,
                   LoadTensors(adapter.tensors, *file, pool, ledger, layout.packed, {}, {}));
  RETURN_IF_ERROR(file->CheckUnchanged(adapter.stamp));

  weights->info_ = {.name = adapter.name,
                    .content = AdapterDigest(adapter, digests),
                    .scale = adapter.scale,
                    .rank = adapter.rank_max,
                    .bytes = footprint.bytes};
  for (size_t i = 0; i < adapter.tensors.size(); i += 2) {
    const TensorSource& a = adapter.tensors[i];
    const TensorSource& b = adapter.tensors[i + 1];
    const size_t slot = size_t{a.layer} * kParts + static_cast<size_t>(a.part);
    if (weights->index_.size() <= slot) weights->index_.resize(slot + 1, -1);
    weights->index_[slot] = static_cast<int32_t>(weights->pairs_.size());
    weights->pairs_.push_back({.a = {a.type, a.rows, a.cols, layout.packed[i].data()},
                               .b = {b.type, b.rows, b.cols, layout.packed[i + 1].data()},
                               .strength = adapter.alpha == 0 ? 1.0f : adapter.alpha / static_cast<float>(a.rows)});
  }
  return weights;
}

const AdapterPair* AdapterWeights::Find(Part part, uint32_t layer) const {
  const size_t slot = size_t{layer} * kParts + static_cast<size_t>(part);
  return slot < index_.size() && index_[slot] >= 0 ? &pairs_[static_cast<size_t>(index_[slot])] : nullptr;
}

}  // namespace reprise
