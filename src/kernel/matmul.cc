// The driver of products: quantises the inputs once per format, cuts the products into pieces and lets
// the workers claim them.
#include "kernel/matmul.h"

#include <algorithm>
#include <array>

#include "base/bytes.h"
#include "base/check.h"
#include "kernel/matmul_ggml.h"
#include "kernel/matmul_tile.h"
#include "kernel/quantize.h"
#include "kernel/run_pieces.h"

namespace reprise {
namespace {

constexpr uint32_t kProductsMax = 16;
// Weight bytes of one piece when few inputs share them: 3 to 6 us of memory reading.
constexpr uint64_t kPieceBytes = 64 << 10;
// Pieces per worker that we want at least, so that a descheduled worker holds back little.
constexpr uint32_t kPiecesPerWorker = 4;
constexpr uint32_t kInputsPerPieceMin = 64;
// Groups of rows of one piece when many inputs share them.
constexpr uint32_t kGroupsPerPiece = 4;
// Below this many values the calling thread quantises alone: waking the others would take longer. Above,
// a piece has at least kQuantizePiece values, about 3 us.
constexpr uint64_t kQuantizeAloneMax = 16 << 10;
constexpr uint32_t kQuantizePiece = 8 << 10;

enum class InputFormat : uint32_t { kBlocks32, kBlocks256, kFloats, kGgml };

InputFormat InputFormatOf(WeightType type) {
  InputFormat format = InputFormat::kGgml;
  VisitPacked(type, [&](auto tag) {
    using Packed = typename decltype(tag)::type;
    format = packed::kIsFloat<Packed> ? InputFormat::kFloats
             : packed::kIsK<Packed>   ? InputFormat::kBlocks256
                                      : InputFormat::kBlocks32;
  });
  return format;
}

// Q6_K has sub-blocks of 16 columns: 512-bit dot products lose there, by 5 to 20 % (Zen 4), until there are
// more inputs. All give the same bits, so this is a matter of speed alone.
constexpr uint32_t kNarrowInputsMax = 4;
Isa IsaOf(Isa isa, WeightType type, uint32_t n) {
  return isa == Isa::kAvx512 && type == WeightType::kQ6_K && n <= kNarrowInputsMax ? Isa::kAvx2 : isa;
}

using TileFunction = void (*)(const Tile&);

TileFunction TileFunctionOf(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx512:
      return MultiplyTileAvx512;
    case Isa::kAvx2:
      return MultiplyTileAvx2;
#endif
    default:
      return MultiplyTilePortable;
  }
}

// Of one worker, whatever the instruction set.
uint64_t TileScratchBytes(uint32_t inputs) {
  uint64_t bytes = TileScratchBytesPortable(std::min(inputs, kTileInputsMax));
#if defined(__x86_64__)
  bytes = std::max(bytes, TileScratchBytesAvx2(std::min(inputs, kTileInputsMax)));
#endif
  return RoundUp(bytes, 64);
}

Panels EmptyPanels(InputFormat format, uint32_t inputs, uint32_t cols) {
  Panels panels;
  const bool wide = format == InputFormat::kBlocks256;
  panels.inputs = inputs;
  panels.blocks = static_cast<uint32_t>(CeilDiv(cols, wide ? 256 : 32));
  panels.block_bytes = wide ? sizeof(InputBlock256) : sizeof(InputBlock32);
  return panels;
}
uint64_t Bytes(const Panels& panels) {
  return RoundUp(uint64_t{panels.inputs} * panels.blocks * panels.block_bytes, 64);
}

void QuantizeInputs(const Compute& compute, InputFormat format, const Panels& panels, const float* x, uint32_t x_stride,
                    uint32_t cols) {
  // Where accumulators start depends on the instruction set, and among K-quants only Q6_K reads it.
  const Isa isa = format == InputFormat::kBlocks256 ? IsaOf(compute.isa, WeightType::kQ6_K, panels.inputs) : compute.isa;
  const auto quantize_row = format == InputFormat::kBlocks256 ? QuantizeRow256 : QuantizeRow32;
  const auto quantize = [&](uint32_t first_input, uint32_t last_input) {
    for (uint32_t input = first_input; input < last_input; ++input) {
      const uint32_t panel = input / kPanelInputs;
      std::byte* first = panels.panel(panel) + input % kPanelInputs * panels.block_bytes;
      const uint64_t step = uint64_t{panels.width(panel)} * panels.block_bytes;
      quantize_row(isa, x + uint64_t{input} * x_stride, panels.blocks, first, step);
    }
  };
  if (uint64_t{panels.inputs} * cols <= kQuantizeAloneMax) return quantize(0, panels.inputs);
  const uint32_t per_piece = std::max(1u, kQuantizePiece / cols);
  RunPieces(compute, static_cast<uint32_t>(CeilDiv(panels.inputs, per_piece)), [&](uint32_t piece, uint32_t) {
    quantize(piece * per_piece, std::min(panels.inputs, (piece + 1) * per_piece));
  });
}

// How one product is cut: row_pieces x input_pieces.
struct Cut {
  const Product* product = nullptr;
  const Panels* panels = nullptr;
  TileFunction multiply = nullptr;
  uint32_t groups = 0, groups_per_piece = 0, row_pieces = 0;
  uint32_t inputs_per_piece = 0, input_pieces = 0;
  uint32_t first_piece = 0;
};

Cut CutProduct(const Product& product, uint32_t n, uint32_t threads) {
  const PackedWeight& weight = *product.weight;
  const uint32_t wanted = threads == 1 ? 1 : kPiecesPerWorker * threads;
  Cut cut;
  cut.product = &product;
  cut.groups = static_cast<uint32_t>(CeilDiv(weight.rows, kGroupRows));
  cut.groups_per_piece = kGroupsPerPiece;
  if (n <= kPanelInputs) {
    const uint64_t group_bytes = kGroupRows * RowBytes(weight.type, weight.cols);
    cut.groups_per_piece = static_cast<uint32_t>(std::max<uint64_t>(1, kPieceBytes / group_bytes));
  }
  cut.groups_per_piece = std::clamp(cut.groups / wanted, 1u, cut.groups_per_piece);
  cut.row_pieces = static_cast<uint32_t>(CeilDiv(cut.groups, cut.groups_per_piece));
  cut.inputs_per_piece = std::min(n, kTileInputsMax);
  if (cut.row_pieces < wanted && n > kInputsPerPieceMin) {  // a small matrix: cut the inputs too
    const auto parts = static_cast<uint32_t>(CeilDiv(wanted, cut.row_pieces));
    const auto inputs = static_cast<uint32_t>(RoundUp(CeilDiv(n, parts), kPanelInputs));
    cut.inputs_per_piece = std::clamp(inputs, kInputsPerPieceMin, cut.inputs_per_piece);
  }
  cut.input_pieces = static_cast<uint32_t>(CeilDiv(n, cut.inputs_per_piece));
  return cut;
}

Tile TileOf(const Cut& cut, uint32_t piece, uint32_t n) {
  const uint32_t rows = piece % cut.row_pieces, inputs = piece / cut.row_pieces;
  Tile tile;
  tile.product = cut.product;
  tile.panels = cut.panels;
  tile.first_group = rows * cut.groups_per_piece;
  tile.last_group = std::min(cut.groups, tile.first_group + cut.groups_per_piece);
  tile.first_input = inputs * cut.inputs_per_piece;
  tile.last_input = std::min(n, tile.first_input + cut.inputs_per_piece);
  return tile;
}

void CheckProducts(uint32_t x_stride, std::span<const Product> products) {
  CHECK_LE(products.size(), kProductsMax);
  for (const Product& product : products) {
    CHECK(product.weight != nullptr && product.out != nullptr);
    CHECK_EQ(product.weight->cols, products[0].weight->cols);
    CHECK_LE(product.weight->cols, x_stride);
    CHECK_LE(product.weight->rows, product.out_stride);
    CHECK(Multipliable(product.weight->type, product.weight->cols));
  }
}

}  // namespace

uint64_t MultiplyScratchBytes(uint32_t rows_max, uint32_t cols_max, uint32_t threads) {
  return threads * TileScratchBytes(rows_max) + Bytes(EmptyPanels(InputFormat::kBlocks32, rows_max, cols_max)) +
         Bytes(EmptyPanels(InputFormat::kBlocks256, rows_max, cols_max));
}

void Multiply(const Compute& compute, const float* x, uint32_t x_stride, uint32_t n, std::span<const Product> products,
              std::span<std::byte> scratch) {
  if (n == 0 || products.empty()) return;
  CheckProducts(x_stride, products);
  const uint32_t cols = products[0].weight->cols, threads = Threads(compute);
  const uint64_t tile_bytes = TileScratchBytes(n);
  CHECK_LE(MultiplyScratchBytes(n, cols, threads), scratch.size());

  std::array<Panels, 2> panels;  // kBlocks32, kBlocks256: without data until a product wants them
  std::byte* free = scratch.data() + threads * tile_bytes;
  std::array<Cut, kProductsMax> cuts;
  uint32_t cuts_used = 0, pieces = 0;
  for (const Product& product : products) {
    const InputFormat format = InputFormatOf(product.weight->type);
    if (format == InputFormat::kGgml || product.weight->rows == 0) continue;
    Cut& cut = cuts[cuts_used++];
    cut = CutProduct(product, n, threads);
    cut.multiply = TileFunctionOf(IsaOf(compute.isa, product.weight->type, n));
    cut.first_piece = pieces;
    pieces += cut.row_pieces * cut.input_pieces;
    if (format == InputFormat::kFloats) continue;
    Panels& wanted = panels[static_cast<uint32_t>(format)];
    cut.panels = &wanted;
    if (wanted.data != nullptr) continue;
    wanted = EmptyPanels(format, n, cols);
    wanted.data = free;
    free += Bytes(wanted);
    QuantizeInputs(compute, format, wanted, x, x_stride, cols);
  }

  RunPieces(compute, pieces, [&](uint32_t piece, uint32_t worker) {
    uint32_t c = 0;
    while (c + 1 < cuts_used && cuts[c + 1].first_piece <= piece) ++c;
    Tile tile = TileOf(cuts[c], piece - cuts[c].first_piece, n);
    tile.x = x;
    tile.x_stride = x_stride;
    tile.scratch = scratch.data() + worker * tile_bytes;
    cuts[c].multiply(tile);
  });

  for (const Product& product : products) {
    if (InputFormatOf(product.weight->type) == InputFormat::kGgml) {
      MultiplyGgml(compute, x, x_stride, n, product, scratch);
    }
  }
}

}  // namespace reprise
