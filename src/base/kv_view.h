// Views of KV memory: where a slot's rows are, without knowing what they mean.
//
// Ownership: views; the pool owns the bytes. Threads: values.
// Design:    docs/format/block.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/geometry.h"
#include "base/ids.h"

namespace reprise {

// One layer of one group's slots.
//   slot s, K: base + s * slot_stride              // [kv_heads][key_dim][block_tokens], lanes are tokens
//   slot s, V: base + s * slot_stride + value_offset  // [kv_heads][block_tokens][value_dim]
struct KvLayerView {
  std::byte* base = nullptr;
  uint64_t slot_stride = 0;   // bytes
  uint64_t value_offset = 0;  // bytes
  uint32_t kv_heads = 0;
  uint32_t key_dim = 0;
  uint32_t value_dim = 0;
  uint32_t block_tokens = 0;
  ElementType key_type = ElementType::kF16;
  ElementType value_type = ElementType::kF16;

  std::byte* Key(SlotId slot) const { return base + slot.value() * slot_stride; }
  std::byte* Value(SlotId slot) const { return Key(slot) + value_offset; }
};

// All slots of one group: slot s starts at base + s * SlotBytes(geometry, group).
struct KvGroupView {
  std::byte* base = nullptr;
  uint32_t slots = 0;
};

// The view of `layer_in_group` (an index into LayerGroup::layers).
KvLayerView LayerView(const Geometry& geometry, GroupId group, const KvGroupView& slots, uint32_t layer_in_group);

}  // namespace reprise
