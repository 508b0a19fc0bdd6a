#include "kernel/matmul_tile.h"
namespace reprise {
uint64_t TileScratchBytes(uint32_t inputs_max) { return uint64_t{inputs_max} * kGroupRows * 4 * 4; }
void MultiplyTileAvx2(const Tile& tile) { MultiplyTilePortable(tile); }
}  // namespace reprise
