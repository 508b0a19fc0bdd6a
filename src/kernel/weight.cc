// Weight types: names, sizes, dequantisation.
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "kernel/matmul.h"
#include "kernel/weight_packed.h"
#include "kernel/weight_row.h"

namespace reprise {
namespace {

// GGUF_TYPE numbers that ggml has dropped have no block size.
bool GgmlKnows(WeightType type) {
  return static_cast<uint32_t>(type) < GGML_TYPE_COUNT && ggml_blck_size(static_cast<ggml_type>(type)) > 0;
}

// Products of two factors before the last: the same bits as ggml's conversion.
template <class Packed>
void Dequantize(const BlockRow& row, float* out) {
  for (int k = 0; k < Packed::kColumns; ++k) {
    const int s = k / Packed::kSub;
    const float code = static_cast<float>(row.codes[k] - Packed::kOffset);
    const float scaled = row.d * static_cast<float>(row.scales[s]) * code;
    out[k] = Packed::kMin ? scaled - row.min * static_cast<float>(row.mins[s]) : scaled;
  }
}

const ggml_type_traits& GgmlTraits(WeightType type) {
  CHECK(GgmlKnows(type));
  const ggml_type_traits* traits = ggml_get_type_traits(static_cast<ggml_type>(type));
  CHECK(traits != nullptr && traits->to_float != nullptr);
  return *traits;
}

}  // namespace

bool HasKernel(WeightType type) {
  return VisitPacked(type, [](auto) {});
}

bool Multipliable(WeightType type, uint32_t cols) {
  if (cols == 0) return false;
  bool whole = false;
  const bool ours = VisitPacked(type, [&](auto format) { whole = cols % decltype(format)::type::kColumns == 0; });
  if (ours) return whole;
  if (!GgmlKnows(type) || ggml_get_type_traits(static_cast<ggml_type>(type))->to_float == nullptr) return false;
  const ggml_type_traits_cpu* traits = ggml_get_type_traits_cpu(static_cast<ggml_type>(type));
  if (traits->vec_dot == nullptr) return false;
  if (ggml_get_type_traits_cpu(traits->vec_dot_type)->from_float == nullptr) return false;
  return cols % ggml_blck_size(static_cast<ggml_type>(type)) == 0 && cols % ggml_blck_size(traits->vec_dot_type) == 0;
}

std::string_view Name(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return "F32";
    case WeightType::kF16:
      return "F16";
    case WeightType::kBF16:
      return "BF16";
    case WeightType::kQ4_0:
      return "Q4_0";
    case WeightType::kQ4_1:
      return "Q4_1";
    case WeightType::kQ5_0:
      return "Q5_0";
    case WeightType::kQ5_1:
      return "Q5_1";
    case WeightType::kQ8_0:
      return "Q8_0";
    case WeightType::kQ4_K:
      return "Q4_K";
    case WeightType::kQ5_K:
      return "Q5_K";
    case WeightType::kQ6_K:
      return "Q6_K";
  }
  return GgmlKnows(type) ? ggml_type_name(static_cast<ggml_type>(type)) : "unknown";
}

uint64_t RowBytes(WeightType type, uint32_t cols) {
  uint64_t bytes = 0;
  const bool ours = VisitPacked(type, [&](auto format) {
    using Packed = typename decltype(format)::type;
    CHECK_EQ(cols % Packed::kColumns, 0u);
    bytes = uint64_t{cols / Packed::kColumns} * sizeof(typename Packed::Gguf);
  });
  if (ours) return bytes;
  CHECK(GgmlKnows(type));
  return ggml_row_size(static_cast<ggml_type>(type), cols);
}

uint64_t PackedBytes(WeightType type, uint32_t rows, uint32_t cols) {
  return RoundUp(RoundUp(rows, kGroupRows) * RowBytes(type, cols), 64);
}

void DequantizeRow(WeightType type, const std::byte* gguf_row, std::span<float> out) {
  const bool ours = VisitPacked(type, [&](auto format) {
    using Packed = typename decltype(format)::type;
    using Gguf = typename Packed::Gguf;
    CHECK_EQ(out.size() % Packed::kColumns, 0u);
    for (size_t at = 0; at < out.size(); at += Packed::kColumns, gguf_row += sizeof(Gguf)) {
      Gguf block;
      std::memcpy(&block, gguf_row, sizeof(block));
      if constexpr (packed::kIsFloat<Packed>) {
        out[at] = ToFloat(block);
      } else {
        BlockRow row;
        Read(block, row);
        Dequantize<Packed>(row, &out[at]);
      }
    }
  });
  if (!ours) GgmlTraits(type).to_float(gguf_row, out.data(), static_cast<int64_t>(out.size()));
}

void DequantizePackedRow(const PackedWeight& weight, uint32_t row, std::span<float> out) {
  CHECK_LT(row, weight.rows);
  CHECK_EQ(out.size(), weight.cols);
  const bool ours = VisitPacked(weight.type, [&](auto format) {
    using Packed = typename decltype(format)::type;
    const uint32_t blocks = weight.cols / Packed::kColumns;
    const auto* block = reinterpret_cast<const Packed*>(weight.data) + uint64_t{row / kGroupRows} * blocks;
    for (size_t at = 0; at < out.size(); at += Packed::kColumns, ++block) {
      if constexpr (packed::kIsFloat<Packed>) {
        out[at] = ToFloat(*block, row % kGroupRows);
      } else {
        BlockRow spread;
        Read(*block, row % kGroupRows, spread);
        Dequantize<Packed>(spread, &out[at]);
      }
    }
  });
  if (ours) return;
  const std::byte* raw = weight.data + row * RowBytes(weight.type, weight.cols);
  GgmlTraits(weight.type).to_float(raw, out.data(), static_cast<int64_t>(out.size()));
}

}  // namespace reprise
