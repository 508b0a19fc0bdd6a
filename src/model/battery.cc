#include "model/battery.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "absl/strings/str_cat.h"
#include "attention/attention.h"
#include "base/check.h"
#include "kernel/half.h"
#include "kernel/matmul.h"
#include "kernel/ops.h"
#include "kernel/run_pieces.h"
#include "kernel/weight_packed.h"

namespace reprise {
namespace {

constexpr std::string_view kProduct = "product/", kAttention = "attention/", kGgml = "ggml/";

struct alignas(64) Line {
  std::byte bytes[64];
};
// Zeros, aligned as kernels want them.
class AlignedBytes {
 public:
  explicit AlignedBytes(uint64_t bytes) : lines_(bytes / sizeof(Line) + 1) {}
  std::byte* data() { return lines_.data()->bytes; }
  std::span<std::byte> span() { return std::as_writable_bytes(std::span(lines_)); }

 private:
  std::vector<Line> lines_;
};

// Numbers that are the same everywhere: SplitMix64 and exact conversions.
class Numbers {
 public:
  explicit Numbers(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }
  // In [-1, 1), a multiple of 2^-23.
  float Float() { return static_cast<float>(static_cast<int32_t>(Next() >> 40) - (1 << 23)) * 0x1p-23f; }
  // Every seventh value is denormal, or meets one: an environment that flushes them is seen.
  std::vector<float> Floats(size_t count) {
    std::vector<float> out(count);
    for (size_t i = 0; i < count; ++i) out[i] = i % 7 == 6 ? Float() * 0x1p-130f : Float() * 2.0f;
    return out;
  }

 private:
  uint64_t state_;
};

void HashFloats(Sha256& sha, std::span<const float> values) { sha.Update(std::as_bytes(values)); }

// A half between 2^-7 and 2^-5 of either sign.
uint16_t SmallHalf(Numbers& numbers) {
  const uint64_t random = numbers.Next();
  return static_cast<uint16_t>((random & 0x8000) | 0x2000 | (random & 0x07ff));
}

template <class Block>
Block RandomBlock(Numbers& numbers) {
  Block block;
  auto* bytes = reinterpret_cast<unsigned char*>(&block);
  for (size_t i = 0; i < sizeof(Block); ++i) bytes[i] = static_cast<unsigned char>(numbers.Next() >> 24);
  if constexpr (requires { block.d; }) block.d = SmallHalf(numbers);
  if constexpr (requires { block.m; }) block.m = SmallHalf(numbers);
  if constexpr (requires { block.dmin; }) block.dmin = SmallHalf(numbers);
  if constexpr (std::is_same_v<Block, gguf::F32>) block.w = numbers.Float();
  if constexpr (std::is_same_v<Block, gguf::F16>) block.w = F16OfFloat(numbers.Float());
  if constexpr (std::is_same_v<Block, gguf::BF16>) block.w = Bf16OfFloat(numbers.Float());
  return block;
}

// GGUF rows of any type, [rows][RowBytes].
std::string RandomRows(WeightType type, uint32_t rows, uint32_t cols, Numbers& numbers) {
  std::string out;
  const bool ours = VisitPacked(type, [&](auto format) {
    using Block = typename decltype(format)::type::Gguf;
    for (uint32_t i = 0; i < rows * (cols / Block::kColumns); ++i) {
      const Block block = RandomBlock<Block>(numbers);
      out.append(reinterpret_cast<const char*>(&block), sizeof(block));
    }
  });
  if (ours) return out;
  // Where the scales are in ggml's other types is ggml's: without these bits any half is below 2^-3.
  out.resize(rows * RowBytes(type, cols));
  for (char& byte : out) byte = static_cast<char>(numbers.Next() >> 24 & 0x2f);
  return out;
}

// Every way that a product takes: one input, few, more than a panel; rows that fill no whole group.
Digest CheckProduct(WeightType type, const Compute& compute) {
  constexpr uint32_t kRows = 37, kCols = 512, kInputs = 19;
  Numbers numbers(static_cast<uint64_t>(type) + 1);
  const std::string rows = RandomRows(type, kRows, kCols, numbers);
  AlignedBytes packed(PackedBytes(type, kRows, kCols));
  const PackedWeight weight{type, kRows, kCols, packed.data()};
  PackGroups(weight, reinterpret_cast<const std::byte*>(rows.data()), 0, (kRows + 15) / 16);
  const std::vector<float> x = numbers.Floats(kInputs * kCols), bias = numbers.Floats(kRows);
  AlignedBytes scratch(MultiplyScratchBytes(kInputs, kCols, Threads(compute)));
  std::vector<float> out(kInputs * kRows);
  Sha256 sha;
  for (const uint32_t n : {1u, 5u, kInputs}) {
    const Product product{&weight, bias.data(), out.data(), kRows};
    Multiply(compute, x.data(), kCols, n, {&product, 1}, scratch.span());
    HashFloats(sha, std::span(out).first(n * kRows));
  }
  std::vector<float> row(kCols);
  DequantizePackedRow(weight, kRows - 1, row);
  HashFloats(sha, row);
  return sha.Finish();
}

// Slices and a decode beyond one partition of 256 positions, full and through a window, in slots out of order.
Digest CheckAttention(ElementType type, const Compute& compute) {
  constexpr uint32_t kTokens = 293, kSlice = 5, kBlock = 32, kBlocks = (kTokens + kBlock - 1) / kBlock;
  constexpr uint32_t kQueryHeads = 3;
  Sha256 sha;
  for (const uint32_t dim : {64u, 80u, 256u}) {
    Numbers numbers(dim * 16 + static_cast<uint64_t>(type));
    Geometry geometry;
    geometry.groups = {{.layers = {0}, .kv_heads = 1, .key_dim = dim, .value_dim = dim}};
    geometry.key_type = geometry.value_type = type;
    geometry.block_tokens = kBlock;
    AlignedBytes slots(SlotBytes(geometry, GroupId(0)) * kBlocks);
    const KvLayerView kv = LayerView(geometry, GroupId(0), {slots.data(), kBlocks}, 0);
    std::vector<SlotId> table;
    for (uint32_t b = 0; b < kBlocks; ++b) table.push_back(SlotId((b * 7 + 3) % kBlocks));

    const std::vector<float> k = numbers.Floats(kTokens * dim), v = numbers.Floats(kTokens * dim);
    const AttentionSlice all{0, kTokens, 0, table};
    WriteKv(compute, kv, {&all, 1}, k.data(), dim, v.data(), dim);
    const uint32_t stride = kQueryHeads * dim;
    const std::vector<float> q = numbers.Floats((kSlice + 1) * stride);
    std::vector<float> out(q.size());
    const AttentionSlice slices[] = {{0, kSlice, kTokens - kSlice, table}, {kSlice, 1, 17, table}};
    for (const uint32_t window : {0u, 100u}) {
      const AttentionShape shape{.query_heads = kQueryHeads, .window = window, .scale = 0.125f};
      AlignedBytes scratch(AttendScratchBytes(shape, dim, dim, kSlice + 1, kTokens, Threads(compute)));
      Attend(compute, shape, kv, slices, q.data(), stride, out.data(), stride, scratch.span());
      HashFloats(sha, out);
    }
  }
  return sha.Finish();
}

Digest CheckNorm(const Compute& compute) {
  constexpr uint32_t kRows = 3, kDim = 149;
  Numbers numbers(301);
  std::vector<float> x = numbers.Floats(kRows * kDim);
  const std::vector<float> weight = numbers.Floats(kDim);
  RmsNorm(compute, x.data(), x.data(), kRows, kDim, kDim, weight, 1e-5f);
  RmsNormHeads(compute, x.data(), 1, kRows, kDim, kRows * kDim, weight, 1e-6f);
  return Sha256::Of(std::as_bytes(std::span(x)));
}

// One of the functions of an array and another.
template <class Function>
Digest CheckRows(uint64_t seed, Function&& function) {
  constexpr size_t kCount = 1003;
  Numbers numbers(seed);
  std::vector<float> x = numbers.Floats(kCount);
  // Wide enough for every branch of exp and tanh.
  for (size_t i = 0; i < kCount; i += 5) x[i] *= static_cast<float>(i) * 0.1f;
  const std::vector<float> y = numbers.Floats(kCount);
  function(x, y);
  return Sha256::Of(std::as_bytes(std::span(x)));
}

Digest CheckRope(const Compute& compute) {
  constexpr uint32_t kRows = 4, kHeads = 2, kDim = 80, kDims = 64;
  Numbers numbers(501);
  std::vector<float> factors(kDims / 2);
  for (float& factor : factors) factor = 1.5f + numbers.Float();
  const RopeParameters variants[] = {
      {.type = RopeType::kNormal, .dims = kDims},
      {.type = RopeType::kNeox, .dims = kDims, .base = 1e6f, .scale = 0.125f},
      {.type = RopeType::kNeox, .dims = kDims, .scale = 0.25f, .ext_factor = 1.0f, .original_context = 4096},
      {.type = RopeType::kNormal, .dims = kDims, .base = 5e5f, .factors = factors}};
  const uint32_t positions[kRows] = {0, 1, 1000, 131071};
  Sha256 sha;
  for (const RopeParameters& rope : variants) {
    std::vector<float> tables(kRows * kDims), x = numbers.Floats(kRows * kHeads * kDim);
    for (uint32_t r = 0; r < kRows; ++r) RopeTable(rope, positions[r], tables.data() + r * kDims);
    Rope(compute, rope, tables.data(), x.data(), kRows, kHeads, kDim, kHeads * kDim);
    HashFloats(sha, tables);
    HashFloats(sha, x);
  }
  return sha.Finish();
}

WeightType WeightTypeOf(std::string_view name) {
  constexpr uint32_t kTypesMax = 256, kCols = 256;
  for (uint32_t type = 0; type < kTypesMax; ++type)
    if (Multipliable(static_cast<WeightType>(type), kCols) && Name(static_cast<WeightType>(type)) == name)
      return static_cast<WeightType>(type);
  CHECK(false);
}

ElementType ElementTypeOf(std::string_view name) {
  for (const ElementType type : {ElementType::kF32, ElementType::kF16, ElementType::kBf16})
    if (Name(type) == name) return type;
  CHECK(false);
}

}  // namespace

std::vector<std::string> ChecksOf(const ModelDescription& model) {
  std::set<std::string> checks = {"add", "norm", "rope", model.gelu ? "gelu" : "silu"};
  const auto add_products = [&checks](const std::vector<TensorSource>& tensors) {
    for (const TensorSource& tensor : tensors)
      if (tensor.matrix)
        checks.insert(
            absl::StrCat(std::string(HasKernel(tensor.type) ? kProduct : kGgml), std::string(Name(tensor.type))));
  };
  add_products(model.tensors);
  for (const AdapterDescription& adapter : model.adapters) add_products(adapter.tensors);
  for (const ElementType type : {model.geometry.key_type, model.geometry.value_type})
    checks.insert(absl::StrCat(std::string(kAttention), std::string(Name(type))));
  if (model.logit_soft_cap != 0) checks.insert("cap");
  return {checks.begin(), checks.end()};
}

Digest RunCheck(std::string_view check, const Compute& compute) {
  if (check.starts_with(kProduct)) return CheckProduct(WeightTypeOf(check.substr(kProduct.size())), compute);
  if (check.starts_with(kGgml)) return CheckProduct(WeightTypeOf(check.substr(kGgml.size())), compute);
  if (check.starts_with(kAttention)) return CheckAttention(ElementTypeOf(check.substr(kAttention.size())), compute);
  if (check == "norm") return CheckNorm(compute);
  if (check == "rope") return CheckRope(compute);
  if (check == "add")
    return CheckRows(401, [&](std::vector<float>& x, const std::vector<float>& y) {
      AddRows(compute, x.data(), y.data(), x.size());
      ScaleRows(compute, x.data(), 1.7f, x.size());
      AddScaledRows(compute, x.data(), -0.3f, y.data(), x.size());
    });
  if (check == "silu")
    return CheckRows(402, [&](std::vector<float>& x, const std::vector<float>& y) {
      SiluMultiply(compute, x.data(), y.data(), x.size());
    });
  if (check == "gelu")
    return CheckRows(403, [&](std::vector<float>& x, const std::vector<float>& y) {
      GeluTanhMultiply(compute, x.data(), y.data(), x.size());
    });
  CHECK(check == "cap");
  return CheckRows(
      404, [&](std::vector<float>& x, const std::vector<float>&) { SoftCap(compute, x.data(), 30.0f, x.size()); });
}

BatteryReport RunBattery(const ModelDescription& model, const Compute& compute,
                         std::span<const RecordedResult> recorded) {
  BatteryReport report;
  Sha256 joined;
  bool joins = false;
  for (const std::string& check : ChecksOf(model)) {
    const std::string hex = RunCheck(check, compute).Hex();
    if (!check.starts_with(kGgml)) {
      ++report.checks;
      const bool same = std::any_of(recorded.begin(), recorded.end(), [&](const RecordedResult& result) {
        return result.check == check && result.hex == hex;
      });
      if (same) continue;
      report.different.push_back(check);
    }
    joined.Update(absl::StrCat(check, "=", hex, "\n"));
    joins = true;
  }
  if (joins) report.numerics = absl::StrCat("/battery=", joined.Finish().Hex());
  return report;
}

}  // namespace reprise
