// Packing: 16 GGUF rows become one interleaved group (weight_packed.h).
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernel/matmul.h"
#include "kernel/weight_packed.h"

namespace reprise {
namespace {

// One block of up to 16 rows; rows that the matrix does not have are null and packed as zeros.
template <class Gguf>
using Rows = const Gguf* [kGroupRows];

// The codes of a group, line by line: codes[4-group][row * 4 + t].
template <class Packed>
struct Lines {
  uint8_t line[Packed::kColumns / 4][64];

  explicit Lines(const Rows<typename Packed::Gguf>& rows) {
    for (int r = 0; r < kGroupRows; ++r) {
      alignas(64) uint8_t codes[Packed::kColumns] = {};
      if (rows[r] != nullptr) Codes(*rows[r], codes);
      for (int i = 0; i < Packed::kColumns / 4; ++i) std::memcpy(line[i] + r * 4, codes + i * 4, 4);
    }
  }
};

// Eight lines of codes into four of nibbles and, when `high` is not null, one of fifth bits.
void PackLines32(const uint8_t (*line)[64], uint8_t (*q)[64], uint8_t* high) {
  for (int i = 0; i < 4; ++i) {
    for (int b = 0; b < 64; ++b) {
      q[i][b] = static_cast<uint8_t>((line[i][b] & 15) | line[4 + i][b] << 4);
    }
  }
  if (high == nullptr) return;
  std::memset(high, 0, 64);
  for (int i = 0; i < 8; ++i) {
    for (int b = 0; b < 64; ++b) high[b] = static_cast<uint8_t>(high[b] | (line[i][b] >> 4 & 1) << i);
  }
}

template <class Packed>
void PackLines(const Lines<Packed>& lines, Packed& out) {
  if constexpr (std::is_same_v<Packed, packed::Q8_0>) {
    std::memcpy(out.q, lines.line, sizeof(out.q));
  } else if constexpr (std::is_same_v<Packed, packed::Q6_K>) {
    for (int s = 0; s < 8; ++s) {
      const auto* line = lines.line + s * 8;
      PackLines32(line, out.pair[s].q, nullptr);
      std::memset(out.pair[s].high, 0, sizeof(out.pair[s].high));
      for (int i = 0; i < 8; ++i) {
        uint8_t* high = out.pair[s].high[i / 4];
        for (int b = 0; b < 64; ++b) {
          high[b] = static_cast<uint8_t>(high[b] | line[i][b] >> 4 << packed::kHighShift[i % 4]);
        }
      }
    }
  } else if constexpr (std::is_same_v<Packed, packed::Q5_K>) {
    for (int s = 0; s < 8; ++s) PackLines32(lines.line + s * 8, out.sub[s].q, out.sub[s].high);
  } else if constexpr (std::is_same_v<Packed, packed::Q4_K>) {
    for (int s = 0; s < 8; ++s) PackLines32(lines.line + s * 8, out.sub[s].q, nullptr);
  } else if constexpr (requires { out.high; }) {
    PackLines32(lines.line, out.q, out.high);
  } else {
    PackLines32(lines.line, out.q, nullptr);
  }
}

template <class Packed>
void PackScales(const Rows<typename Packed::Gguf>& rows, Packed& out) {
  for (int r = 0; r < kGroupRows; ++r) {
    const typename Packed::Gguf zero = {};
    const typename Packed::Gguf& row = rows[r] != nullptr ? *rows[r] : zero;
    out.d[r] = row.d;
    if constexpr (requires { out.m; }) out.m[r] = row.m;
    if constexpr (requires { out.dmin; }) out.dmin[r] = row.dmin;
    if constexpr (requires { out.scales; }) {
      for (size_t j = 0; j < std::size(out.scales); ++j) out.scales[j][r] = row.scales[j];
    }
  }
}

template <class Packed>
void PackBlock(const Rows<typename Packed::Gguf>& rows, Packed& out) {
  if constexpr (packed::kIsFloat<Packed>) {
    for (int r = 0; r < kGroupRows; ++r) out.w[r] = rows[r] != nullptr ? rows[r]->w : decltype(rows[r]->w){};
  } else {
    PackScales(rows, out);
    PackLines(Lines<Packed>(rows), out);
  }
}

// The file's blocks may lie at any address, so they are copied to where a block may be read.
template <class Packed>
void PackGroup(const std::byte* gguf_rows, uint32_t rows, uint32_t blocks, Packed* out) {
  using Gguf = typename Packed::Gguf;
  constexpr uint32_t kBatch = std::max<uint32_t>(1, 4096 / (kGroupRows * sizeof(Gguf)));
  static_assert(alignof(Gguf) <= 4);
  const uint64_t row_bytes = uint64_t{blocks} * sizeof(Gguf);
  for (uint32_t first = 0; first < blocks; first += kBatch) {
    const uint32_t count = std::min(kBatch, blocks - first);
    Gguf copy[kGroupRows][kBatch];
    for (uint32_t r = 0; r < rows; ++r) {
      std::memcpy(copy[r], gguf_rows + r * row_bytes + uint64_t{first} * sizeof(Gguf), count * sizeof(Gguf));
    }
    for (uint32_t b = 0; b < count; ++b) {
      Rows<Gguf> at = {};
      for (uint32_t r = 0; r < rows; ++r) at[r] = &copy[r][b];
      PackBlock(at, out[first + b]);
    }
  }
}

}  // namespace

void PackGroups(const PackedWeight& weight, const std::byte* gguf_rows, uint32_t first_group, uint32_t last_group) {
  const uint64_t row_bytes = RowBytes(weight.type, weight.cols);
  const uint32_t groups = (weight.rows + kGroupRows - 1) / kGroupRows;
  CHECK(first_group <= last_group && last_group <= groups);
  for (uint32_t group = first_group; group < last_group; ++group) {
    const uint32_t rows = std::min<uint32_t>(kGroupRows, weight.rows - group * kGroupRows);
    const std::byte* from = gguf_rows + uint64_t{group - first_group} * kGroupRows * row_bytes;
    std::byte* to = weight.data + uint64_t{group} * kGroupRows * row_bytes;
    const bool ours = VisitPacked(weight.type, [&](auto format) {
      using Packed = typename decltype(format)::type;
      PackGroup(from, rows, weight.cols / Packed::kColumns, reinterpret_cast<Packed*>(to));
    });
    // Types without a kernel of ours stay as they are, row after row.
    if (!ours) std::memcpy(to, from, rows * row_bytes);
  }
}

}  // namespace reprise
