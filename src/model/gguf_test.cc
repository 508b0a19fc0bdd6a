// Hostile files: each is a good one that is wrong in one place, and each must be refused with a
// message that names the place. The control is the good file.
#include "model/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "model/description.h"
#include "tests/gguf_writer.h"
#include "tests/tiny_model.h"

namespace reprise {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

absl::Status DescribeBytes(std::string_view bytes) {
  ModelDescription model;
  return Describe(MemorySource(bytes), {}, model);
}

TinyOptions Gemma() { return {.family = Family::kGemma3, .layers = 7, .window = 8}; }

void PutU64(std::string& bytes, size_t at, uint64_t value) { bytes.replace(at, 8, reinterpret_cast<char*>(&value), 8); }
void PutU32(std::string& bytes, size_t at, uint32_t value) { bytes.replace(at, 4, reinterpret_cast<char*>(&value), 4); }

// One thing wrong before the file's places are laid out, or after.
struct Broken {
  const char* name;
  const char* culprit;  // must be named
  const char* reason;   // a part of the message
  std::function<void(GgufWriter&)> spoil;
  bool after_layout = false;
};

std::vector<Broken> BrokenFiles() {
  using W = GgufWriter;
  return {
      // The container.
      {"Magic", "header", "not a GGUF file", [](W& w) { w.magic = "GGML"; }},
      {"VersionOne", "header", "version 1", [](W& w) { w.version = 1; }},
      {"VersionFuture", "header", "version 4", [](W& w) { w.version = 4; }},
      {"BigEndian", "header", "big-endian", [](W& w) { w.version = 3u << 24; }},
      {"TensorCountHuge", "header", "tensor count", [](W& w) { w.extra_tensors = int64_t{1} << 60; }},
      {"TensorCountNegative", "header", "tensor count", [](W& w) { w.extra_tensors = -1000; }},
      {"TensorCountOneMore", "tensor", "", [](W& w) { w.extra_tensors = 1; }},
      {"TensorCountOneLess", "is missing", "tensor", [](W& w) { w.extra_tensors = -1; }},
      {"MetadataCountHuge", "header", "metadata count", [](W& w) { w.extra_values = int64_t{1} << 60; }},
      {"MetadataCountOneMore", "tensor 0", "the name has", [](W& w) { w.extra_values = 1; }},
      // Metadata.
      {"KeyTwice", "'llama.block_count'", "twice", [](W& w) { w.U32("llama.block_count", 3); }},
      {"KeyEmpty", "metadata", "empty", [](W& w) { w.U32("", 3); }},
      {"KeyLong", "metadata", "at most 256", [](W& w) { w.U32(std::string(257, 'k'), 3); }},
      {"ValueTypeUnknown", "'general.name'", "value type 99",
       [](W& w) { PutU32(w.FindValue("general.name")->bytes, 0, 99); }},
      {"StringPastTheEnd", "'general.name'", "the file ends",
       [](W& w) { PutU64(w.FindValue("general.name")->bytes, 4, uint64_t{1} << 40); }},
      {"StringLengthWraps", "'general.name'", "the file ends",
       [](W& w) { PutU64(w.FindValue("general.name")->bytes, 4, UINT64_MAX - 3); }},
      {"ArrayCountHuge", "'tokenizer.ggml.tokens'", "elements",
       [](W& w) { PutU64(w.FindValue("tokenizer.ggml.tokens")->bytes, 8, uint64_t{1} << 61); }},
      {"ArrayCountWraps", "'tokenizer.ggml.scores'", "elements",
       [](W& w) { PutU64(w.FindValue("tokenizer.ggml.scores")->bytes, 8, (uint64_t{1} << 62) + 1); }},
      {"ArrayOfArrays", "'tokenizer.ggml.scores'", "array of arrays",
       [](W& w) { PutU32(w.FindValue("tokenizer.ggml.scores")->bytes, 4, 9); }},
      {"AlignmentOdd", "'general.alignment'", "power of two", [](W& w) { w.U32("general.alignment", 48); }},
      {"AlignmentZero", "'general.alignment'", "power of two", [](W& w) { w.U32("general.alignment", 0); }},
      {"AlignmentText", "'general.alignment'", "must be u32", [](W& w) { w.Text("general.alignment", "32"); }},
      {"FamilyMissing", "'general.architecture'", "is missing", [](W& w) { w.EraseValue("general.architecture"); }},
      {"FamilyUnknown", "'mamba'", "llama",
       [](W& w) {
         w.EraseValue("general.architecture");
         w.Text("general.architecture", "mamba");
       }},
      {"FamilyNumber", "'general.architecture'", "must be a string",
       [](W& w) {
         w.EraseValue("general.architecture");
         w.U32("general.architecture", 1);
       }},
      {"LayersMissing", "'llama.block_count'", "is missing", [](W& w) { w.EraseValue("llama.block_count"); }},
      {"LayersZero", "'llama.block_count'", "outside 1 to",
       [](W& w) { PutU32(w.FindValue("llama.block_count")->bytes, 4, 0); }},
      {"LayersHuge", "'llama.block_count'", "outside 1 to",
       [](W& w) { PutU32(w.FindValue("llama.block_count")->bytes, 4, 4000000000u); }},
      {"LayersText", "'llama.block_count'", "must be an integer",
       [](W& w) {
         w.EraseValue("llama.block_count");
         w.Text("llama.block_count", "3");
       }},
      {"LayersOneMore", "'blk.3.attn_norm.weight'", "is missing",
       [](W& w) { PutU32(w.FindValue("llama.block_count")->bytes, 4, 4); }},
      {"LayersOneLess", "'blk.2.", "ignoring it", [](W& w) { PutU32(w.FindValue("llama.block_count")->bytes, 4, 2); }},
      {"HeadsZero", "'llama.attention.head_count'", "outside 1 to",
       [](W& w) { PutU32(w.FindValue("llama.attention.head_count")->bytes, 4, 0); }},
      {"HeadsNotAMultiple", "'llama.attention.head_count_kv'", "multiple",
       [](W& w) { PutU32(w.FindValue("llama.attention.head_count_kv")->bytes, 4, 3); }},
      {"HeadCountsTooFew", "'llama.attention.head_count'", "values for 3 layers",
       [](W& w) {
         w.EraseValue("llama.attention.head_count");
         w.U32Array("llama.attention.head_count", {4, 4});
       }},
      {"HeadCountsDiffer", "'llama.attention.head_count'", "different sizes",
       [](W& w) {
         w.EraseValue("llama.attention.head_count");
         w.U32Array("llama.attention.head_count", {4, 4, 2});
       }},
      {"HeadSizeUnsupported", "head dimension 40", "multiples of 16", [](W& w) { w = TinyModel({.head_dim = 40}); }},
      {"ValueLengthDiffers", "'llama.attention.value_length'", "not the key length",
       [](W& w) { PutU32(w.FindValue("llama.attention.value_length")->bytes, 4, 32); }},
      {"EpsilonNan", "'llama.attention.layer_norm_rms_epsilon'", "outside",
       [](W& w) { PutU32(w.FindValue("llama.attention.layer_norm_rms_epsilon")->bytes, 4, 0x7fc00000); }},
      {"RopeDimensionsOdd", "'llama.rope.dimension_count'", "",
       [](W& w) { PutU32(w.FindValue("llama.rope.dimension_count")->bytes, 4, 63); }},
      {"RopeBaseNegative", "'llama.rope.freq_base'", "outside",
       [](W& w) { PutU32(w.FindValue("llama.rope.freq_base")->bytes, 4, 0xbf800000); }},
      {"RopeScalingUnknown", "'llama.rope.scaling.type'", "yarn",
       [](W& w) { w.Text("llama.rope.scaling.type", "longrope"); }},
      {"RopeFactorsZero", "'rope_freqs.weight'", "not a positive number",
       [](W& w) {
         w = TinyModel({.rope_factors = true});
         PutU32(w.FindTensor("rope_freqs.weight")->data, 8, 0);
       }},
      {"Experts", "'llama.expert_count'", "only 0", [](W& w) { w.U32("llama.expert_count", 8); }},
      {"SplitFile", "'split.count'", "join them", [](W& w) { w.U32("split.count", 3); }},
      {"WindowPatternTooShort", "'gemma3.attention.sliding_window_pattern'", "values for 7 layers",
       [](W& w) {
         w = TinyModel(Gemma());
         w.BoolArray("gemma3.attention.sliding_window_pattern", {true, false});
       }},
      {"VocabularyDiffers", "'tokenizer.ggml.tokens'", "rows",
       [](W& w) {
         w.EraseValue("tokenizer.ggml.tokens");
         w.TextArray("tokenizer.ggml.tokens", std::vector<std::string>(319, "t"));
       }},
      {"VocabularyMissing", "'tokenizer.ggml.tokens'", "is missing",
       [](W& w) { w.EraseValue("tokenizer.ggml.tokens"); }},
      {"VocabularyOfNumbers", "'tokenizer.ggml.tokens'", "array of strings",
       [](W& w) {
         w.EraseValue("tokenizer.ggml.tokens");
         w.U32Array("tokenizer.ggml.tokens", {1, 2, 3});
       }},
      // Tensors.
      {"TensorMissing", "'blk.1.ffn_up.weight'", "is missing", [](W& w) { w.EraseTensor("blk.1.ffn_up.weight"); }},
      {"NormMissing", "'output_norm.weight'", "is missing", [](W& w) { w.EraseTensor("output_norm.weight"); }},
      {"EmbeddingMissing", "'token_embd.weight'", "is missing", [](W& w) { w.EraseTensor("token_embd.weight"); }},
      {"TensorUnexpected", "'blk.0.ffn_gate_inp.weight'", "ignoring it",
       [](W& w) {
         w.AddTensor("blk.0.ffn_gate_inp.weight", 0, {256, 8}, std::string(256 * 8 * 4, '\1'));
       }},
      {"TensorOfAnotherFamily", "'blk.0.attn_q_norm.weight'", "ignoring it",
       [](W& w) { w.AddTensor("blk.0.attn_q_norm.weight", 0, {64}, std::string(256, '\1')); }},
      {"TensorTwice", "'blk.0.attn_q.weight'", "twice",
       [](W& w) { w.FindTensor("blk.1.attn_q.weight")->name = "blk.0.attn_q.weight"; }},
      {"TensorNameEmpty", "tensor", "empty", [](W& w) { w.FindTensor("blk.1.attn_q.weight")->name = ""; }},
      {"TensorNameLong", "tensor", "at most 63",
       [](W& w) { w.FindTensor("blk.1.attn_q.weight")->name = std::string(64, 'n'); }},
      {"DimensionsNone", "'blk.1.attn_q.weight'", "0 dimensions",
       [](W& w) { w.FindTensor("blk.1.attn_q.weight")->dims = {}; }},
      {"DimensionsFive", "'blk.1.attn_q.weight'", "5 dimensions",
       [](W& w) {
         w.FindTensor("blk.1.attn_q.weight")->dims = {1, 1, 1, 1, 1};
       }},
      {"DimensionZero", "'blk.1.attn_q.weight'", "dimension 1 is 0",
       [](W& w) {
         w.FindTensor("blk.1.attn_q.weight")->dims = {256, 0};
       }},
      {"DimensionHuge", "'blk.1.attn_q.weight'", "2^63",
       [](W& w) {
         w.FindTensor("blk.1.attn_q.weight")->dims = {uint64_t{1} << 40, uint64_t{1} << 40};
       }},
      {"DimensionNegative", "'blk.1.attn_q.weight'", "2^63",
       [](W& w) {
         w.FindTensor("blk.1.attn_q.weight")->dims = {256, UINT64_MAX};
       }},
      {"DimensionMany", "'blk.1.attn_q.weight'", "more than the file",
       [](W& w) {
         w.FindTensor("blk.1.attn_q.weight")->dims = {256, uint64_t{1} << 40};
       }},
      {"ShapeTurned", "'blk.1.attn_k.weight'", "must be [256, 128]",
       [](W& w) {
         w.FindTensor("blk.1.attn_k.weight")->dims = {128, 256};
       }},
      {"ShapeOfThreeDimensions", "'blk.1.attn_k.weight'", "must be [256, 128]",
       [](W& w) {
         w.FindTensor("blk.1.attn_k.weight")->dims = {256, 64, 2};
       }},
      {"NormTooLong", "'blk.1.attn_norm.weight'", "must be [256]",
       [](W& w) {
         w.FindTensor("blk.1.attn_norm.weight")->dims = {264};
         w.FindTensor("blk.1.attn_norm.weight")->data.resize(264 * 4);
       }},
      {"EmbeddingOfAnotherWidth", "'token_embd.weight'", "must be [256, 320]",
       [](W& w) {
         w.FindTensor("token_embd.weight")->dims = {128, 320};
       }},
      {"RowsNotWholeBlocks", "'blk.1.attn_q.weight'", "whole blocks of 32",
       [](W& w) {
         w.FindTensor("blk.1.attn_q.weight")->dims = {250, 256};
       }},
      {"ElementTypeUnknown", "'blk.1.attn_q.weight'", "element type 255",
       [](W& w) { w.FindTensor("blk.1.attn_q.weight")->type = 255; }},
      {"ElementTypeRemoved", "'blk.1.attn_q.weight'", "element type 4",
       [](W& w) { w.FindTensor("blk.1.attn_q.weight")->type = 4; }},
      {"MatrixOfIntegers", "'blk.1.attn_q.weight'", "not supported",
       [](W& w) {
         w.FindTensor("blk.1.attn_q.weight")->type = 26;
         w.FindTensor("blk.1.attn_q.weight")->data.resize(256 * 256 * 4);
       }},
      {"NormQuantised", "'blk.1.attn_norm.weight'", "a vector of type",
       [](W& w) { w.FindTensor("blk.1.attn_norm.weight")->type = 8; }},
      {"OffsetPastTheEnd", "'blk.1.attn_q.weight'", "past the end",
       [](W& w) { w.FindTensor("blk.1.attn_q.weight")->offset = uint64_t{1} << 40; }, true},
      {"OffsetWraps", "'blk.1.attn_q.weight'", "past the end",
       [](W& w) { w.FindTensor("blk.1.attn_q.weight")->offset = UINT64_MAX - 31; }, true},
      {"OffsetNotAligned", "'blk.1.attn_q.weight'", "alignment",
       [](W& w) { w.FindTensor("blk.1.attn_q.weight")->offset += 16; }, true},
      {"TensorsOverlap", "'blk.1.attn_q.weight'", "overlap",
       [](W& w) { w.FindTensor("blk.1.attn_q.weight")->offset += 32; }, true},
      {"TensorsShareTheirData", "overlap", "'blk.2.attn_q.weight'",
       [](W& w) { w.FindTensor("blk.1.attn_q.weight")->offset = w.FindTensor("blk.2.attn_q.weight")->offset; }, true},
      {"LastTensorCutOff", "'blk.2.ffn_down.weight'", "past the end",
       [](W& w) { w.tensors.back().data.resize(w.tensors.back().data.size() - 32); }, true},
  };
}

void PrintTo(const Broken& broken, std::ostream* out) { *out << broken.name; }

class BrokenFileTest : public ::testing::TestWithParam<Broken> {};

TEST_P(BrokenFileTest, IsRefusedByName) {
  const Broken& broken = GetParam();
  GgufWriter writer = TinyModel({});
  if (broken.after_layout) writer.Layout();
  broken.spoil(writer);
  if (!broken.after_layout) writer.Layout();
  const absl::Status status = DescribeBytes(writer.Bytes());
  EXPECT_TRUE(status.code() == absl::StatusCode::kInvalidArgument || status.code() == absl::StatusCode::kUnimplemented)
      << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(broken.culprit), HasSubstr(broken.reason)));
}

INSTANTIATE_TEST_SUITE_P(Gguf, BrokenFileTest, ::testing::ValuesIn(BrokenFiles()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(GgufTest, GoodFilesAreAccepted) {
  EXPECT_TRUE(DescribeBytes(TinyModel({}).Bytes()).ok());
  EXPECT_TRUE(DescribeBytes(TinyModel(Gemma()).Bytes()).ok());
  EXPECT_TRUE(DescribeBytes(TinyModel({.rope_factors = true}).Bytes()).ok());
  EXPECT_TRUE(DescribeBytes(TinyModel({.family = Family::kQwen2}).Bytes()).ok());
  EXPECT_TRUE(DescribeBytes(TinyModel({.family = Family::kQwen3, .tied = false}).Bytes()).ok());
}

// Cut anywhere, a file is refused: in the header, in metadata, in the list of tensors, in their data.
TEST(GgufTest, EveryTruncationIsRefused) {
  const std::string bytes = TinyModel({.layers = 1}).Bytes();
  for (size_t length = 0; length < bytes.size(); length += length < 20000 ? 7 : 40009) {
    const absl::Status status = DescribeBytes(std::string_view(bytes).substr(0, length));
    ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << "cut to " << length << " of " << bytes.size();
    ASSERT_FALSE(status.message().empty());
  }
}

// Any byte of header and metadata may be anything: an answer, never a crash. What is answered does
// not matter here; under sanitizers this test is worth most.
TEST(GgufTest, EveryFlippedByteIsAnswered) {
  const std::string bytes = TinyModel({.layers = 1}).Bytes();
  const size_t head = std::min<size_t>(bytes.size(), 24000);
  std::string damaged = bytes;
  constexpr unsigned char kMasks[] = {0x01, 0x80, 0xff, 0x10};
  for (size_t at = 0; at < head; ++at) {
    damaged[at] = static_cast<char>(bytes[at] ^ kMasks[at % 4]);
    (void)DescribeBytes(damaged);  // either answer is right
    damaged[at] = bytes[at];
  }
}

TEST(GgufTest, MessagesHoldNoControlCharacters) {
  GgufWriter writer = TinyModel({});
  writer.FindTensor("blk.1.attn_q.weight")->name = "evil\x1b[2J\n";
  writer.Layout();
  const std::string message(DescribeBytes(writer.Bytes()).message());
  for (const char c : message) EXPECT_GE(static_cast<unsigned char>(c), 0x20);
}

TEST(GgufTest, KeysAreReadByType) {
  GgufWriter writer;
  writer.U32("number", 7);
  writer.F32("float", 2.5f);
  writer.Text("text", "value");
  writer.BoolArray("flags", {true, false, true});
  writer.Layout();
  const std::string bytes = writer.Bytes();
  const absl::StatusOr<Gguf> gguf = Gguf::Parse(MemorySource(bytes));
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  EXPECT_EQ(gguf->Integer("number", 0, 10)->value(), 7u);
  EXPECT_FALSE(gguf->Integer("number", 0, 6).ok());
  EXPECT_FALSE(gguf->Integer("absent", 0, 6)->has_value());
  EXPECT_FALSE(gguf->Integer("float", 0, 6).ok());
  EXPECT_EQ(gguf->Float("float", 0, 10)->value(), 2.5f);
  EXPECT_FALSE(gguf->Float("number", 0, 10).ok());
  EXPECT_EQ(gguf->Text("text")->value(), "value");
  EXPECT_EQ(gguf->RequiredInteger("absent", 0, 6).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(gguf->Find("flags")->numbers, (std::vector<double>{1, 0, 1}));
}

}  // namespace
}  // namespace reprise
