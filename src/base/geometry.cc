#include "base/geometry.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"

namespace reprise {

std::string_view Name(ElementType type) {
  switch (type) {
    case ElementType::kF32:
      return "f32";
    case ElementType::kF16:
      return "f16";
    case ElementType::kBf16:
      return "bf16";
  }
  CHECK(false);
}

std::string_view Name(GroupKind kind) {
  switch (kind) {
    case GroupKind::kFull:
      return "full";
    case GroupKind::kWindow:
      return "window";
    case GroupKind::kLatent:
      return "latent";
    case GroupKind::kRecurrent:
      return "recurrent";
  }
  CHECK(false);
}

uint64_t LayerTokenBytes(const Geometry& geometry, GroupId id) {
  const LayerGroup& group = geometry.group(id);
  return uint64_t{group.kv_heads} * (uint64_t{group.key_dim} * ElementBytes(geometry.key_type) +
                                     uint64_t{group.value_dim} * ElementBytes(geometry.value_type));
}

uint64_t BytesPerToken(const Geometry& geometry, GroupId id) {
  return LayerTokenBytes(geometry, id) * geometry.group(id).layers.size();
}

uint64_t LayerKeyBytes(const Geometry& geometry, GroupId id) {
  const LayerGroup& group = geometry.group(id);
  return uint64_t{group.kv_heads} * group.key_dim * geometry.block_tokens * ElementBytes(geometry.key_type);
}

uint64_t LayerBlockBytes(const Geometry& geometry, GroupId id) {
  return LayerTokenBytes(geometry, id) * geometry.block_tokens;
}

uint64_t SlotBytes(const Geometry& geometry, GroupId id) {
  if (geometry.group(id).kind == GroupKind::kRecurrent) return BytesPerToken(geometry, id);  // one state
  return LayerBlockBytes(geometry, id) * geometry.group(id).layers.size();
}

uint32_t DeriveBlockTokens(const Geometry& geometry) {
  constexpr uint64_t kLayerBlockBytesMin = 32 * 1024;
  uint64_t smallest = UINT64_MAX;
  for (uint32_t g = 0; g < geometry.groups.size(); ++g)
    smallest = std::min(smallest, LayerTokenBytes(geometry, GroupId(g)));
  for (uint32_t tokens = 16; tokens < kBlockTokensMax; tokens *= 2)
    if (smallest * tokens >= kLayerBlockBytesMin) return tokens;
  return kBlockTokensMax;
}

uint64_t ResidentBlocks(const Geometry& geometry, GroupId id, uint64_t tokens, uint64_t in_flight) {
  const LayerGroup& group = geometry.group(id);
  const uint64_t all = CeilDiv(tokens, geometry.block_tokens);
  if (group.kind == GroupKind::kRecurrent) return std::min<uint64_t>(all, 2);  // the state before a step, and after it
  if (group.kind != GroupKind::kWindow || tokens == 0) return all;
  const uint64_t reach = group.window + std::max<uint64_t>(in_flight, 1) - 2;
  return std::min(all, CeilDiv(reach, geometry.block_tokens) + 1);
}

}  // namespace reprise
