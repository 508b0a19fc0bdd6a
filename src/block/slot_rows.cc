#include "block/slot_rows.h"

#include <cstring>

#include "base/check.h"

namespace reprise {

void CopyRows(const Geometry& geometry, GroupId group, std::span<const std::byte> from, std::span<std::byte> to,
              uint32_t rows) {
  CHECK(rows > 0 && rows <= geometry.block_tokens);
  CHECK_EQ(from.size(), SlotBytes(geometry, group));
  CHECK_EQ(to.size(), from.size());
  // The whole slot, whatever `rows` is: K is transposed, so its rows are columns of 2 to 128 bytes at a
  // stride of one block, and picking them out is slower than one streaming copy of everything.
  std::memcpy(to.data(), from.data(), from.size());
}

void ClearRows(const Geometry& geometry, GroupId group, std::span<std::byte> slot, uint32_t first_row) {
  const LayerGroup& shape = geometry.group(group);
  const uint64_t rows = geometry.block_tokens;
  CHECK_LE(first_row, rows);
  const uint64_t key_bytes = ElementBytes(geometry.key_type);
  const uint64_t value_row_bytes = uint64_t{shape.value_dim} * ElementBytes(geometry.value_type);
  std::byte* at = slot.data();
  for (size_t layer = 0; layer < shape.layers.size(); ++layer) {
    for (uint64_t lane = 0; lane < uint64_t{shape.kv_heads} * shape.key_dim; ++lane) {  // [kv_heads][key_dim][rows]
      std::memset(at + first_row * key_bytes, 0, (rows - first_row) * key_bytes);
      at += rows * key_bytes;
    }
    for (uint32_t head = 0; head < shape.kv_heads; ++head) {  // [kv_heads][rows][value_dim]
      std::memset(at + first_row * value_row_bytes, 0, (rows - first_row) * value_row_bytes);
      at += rows * value_row_bytes;
    }
  }
  CHECK_EQ(at, slot.data() + slot.size());
}

}  // namespace reprise
