// What a GGUF file holds, before any weight is read: family, shapes, cache geometry, identity, and
// what its weights will take. Everything that can be refused is refused here, by name.
//
// Ownership: owns everything it refers to; immutable after Read.
// Threads:   any.
// Errors:    NotFound: no such file. InvalidArgument: damaged, naming field or tensor and limit.
//            Unimplemented: a family, type or shape without support, with what is supported.
//            FailedPrecondition: the file changed while it was read.
// Design:    docs/models.md, docs/format/identity_model.md
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/geometry.h"
#include "base/hash.h"
#include "base/identity.h"
#include "base/ledger.h"
#include "kernel/matmul.h"
#include "kernel/ops.h"
#include "model/model_file.h"

namespace reprise {

enum class Family : uint8_t { kLlama, kQwen2, kQwen3, kGemma3 };

// The parts of a model that a tensor can be.
enum class Part : uint8_t {
  kEmbedding,  // token_embd; also the head when the file has no `output`
  kHead,
  kHeadBias,
  kFinalNorm,
  kRopeFactors,
  // Per layer:
  kAttentionNorm,
  kQuery,
  kKey,
  kValue,
  kOutput,
  kQueryBias,
  kKeyBias,
  kValueBias,
  kOutputBias,
  kQueryNorm,
  kKeyNorm,
  kAttentionPostNorm,
  kFeedForwardNorm,
  kGate,
  kUp,
  kDown,
  kGateBias,
  kUpBias,
  kDownBias,
  kFeedForwardPostNorm,
};
inline constexpr uint32_t kParts = static_cast<uint32_t>(Part::kFeedForwardPostNorm) + 1;

// One tensor of the file, checked: within the file, of the right shape, of a type that can be used.
struct TensorSource {
  std::string name;  // as in the file: "blk.0.attn_q.weight"
  Part part = Part::kEmbedding;
  uint32_t layer = 0;
  bool matrix = false;  // multiplied with (packed), else a vector kept as floats
  WeightType type = WeightType::kF32;
  uint32_t rows = 0;  // 1 for vectors
  uint32_t cols = 0;
  uint64_t offset = 0;  // in the file
  uint64_t bytes = 0;
};

struct LayerPlan {
  GroupId group;
  uint32_t index_in_group = 0;
  uint32_t window = 0;  // 0: full
  uint32_t rope = 0;    // index into ModelDescription::ropes
};

struct WeightTypeCount {
  WeightType type;
  uint32_t tensors = 0;
  uint64_t bytes = 0;
};

// A LoRA adapter to have beside the model.
struct AdapterOptions {
  std::string path;
  float scale = 1.0f;  // where a request does not say
  friend bool operator==(const AdapterOptions&, const AdapterOptions&) = default;
};

// What an adapter's GGUF file holds: y += scale * strength * B (A x) beside some of the model's matrices, with
// strength = alpha / rank, or 1 where alpha is 0.
struct AdapterDescription {
  std::string path;
  std::string name;  // the file's stem
  FileStamp stamp;
  float scale = 1.0f;
  float alpha = 0;
  uint32_t rank_max = 0;
  // Pair i is A [rank, cols] at 2 i and B [rows, rank] at 2 i + 1; part and layer are those of the matrix they
  // stand beside.
  std::vector<TensorSource> tensors;
};

struct ModelOptions {
  ElementType key_type = ElementType::kF16;
  ElementType value_type = ElementType::kF16;
  std::vector<AdapterOptions> adapters = {};
};

struct ModelDescription {
  static absl::StatusOr<std::unique_ptr<ModelDescription>> Read(const std::string& path, const ModelOptions& options);
  ModelDescription() = default;
  ModelDescription(const ModelDescription&) = delete;
  ModelDescription& operator=(const ModelDescription&) = delete;

  std::string path;
  std::string name;  // general.name, else the file's stem
  Family family = Family::kLlama;
  std::string family_name;  // general.architecture: "qwen2"
  uint64_t parameters = 0;  // elements of all tensors
  uint64_t file_bytes = 0;
  FileStamp stamp;                            // the file that was read, and no other
  std::vector<WeightTypeCount> weight_types;  // most bytes first

  uint32_t context_trained = 0;
  uint32_t vocab_size = 0;
  uint32_t layers = 0;
  uint32_t width = 0;  // of the residual stream
  uint32_t feed_forward = 0;
  uint32_t query_heads = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;

  float norm_epsilon = 0;
  float embedding_scale = 1;
  float attention_scale = 0;
  float logit_soft_cap = 0;            // 0: off
  bool gelu = false;                   // else SiLU
  std::vector<LayerPlan> layer_plans;  // [layers]
  std::vector<RopeParameters> ropes;   // 1, or 2 where window layers have their own
  std::vector<float> rope_factors;     // what ropes[i].factors refer to

  Geometry geometry;
  // `model` is empty until the weights have been read (ModelWeights::identity).
  ComputationIdentity identity;
  Digest metadata_digest;             // the metadata that counts for `identity.model`
  std::vector<TensorSource> tensors;  // in the file's order
  std::vector<AdapterDescription> adapters;

  bool has_head() const;  // an output matrix of its own, not the embedding's
};

std::string_view Name(Family family);

// Read from any bytes: everything but path, stamp, file_bytes and adapters. For tests and fuzzers.
absl::Status Describe(const ByteSource& source, const ModelOptions& options, ModelDescription& model);

}  // namespace reprise
