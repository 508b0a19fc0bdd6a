#include "base/kv_view.h"

#include "base/check.h"

namespace reprise {

KvLayerView LayerView(const Geometry& geometry, GroupId id, const KvGroupView& slots, uint32_t layer_in_group) {
  const LayerGroup& group = geometry.group(id);
  CHECK_LT(layer_in_group, group.layers.size());
  return {.base = slots.base + layer_in_group * LayerBlockBytes(geometry, id),
          .slot_stride = SlotBytes(geometry, id),
          .value_offset = LayerKeyBytes(geometry, id),
          .kv_heads = group.kv_heads,
          .key_dim = group.key_dim,
          .value_dim = group.value_dim,
          .block_tokens = geometry.block_tokens,
          .key_type = geometry.key_type,
          .value_type = geometry.value_type};
}

}  // namespace reprise
