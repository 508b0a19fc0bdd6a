// The shape of a model's KV cache: layer groups with their dimensions and element types. Every byte
// count of the cache follows from it, in the planner and in the allocator alike.
//
// Threads: immutable values. Errors: none; a geometry is checked by the model that makes it.
// Design:  DESIGN 5, docs/format/block.md
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/ids.h"

namespace reprise {

enum class ElementType : uint8_t { kF32 = 0, kF16 = 1, kBf16 = 2 };  // values are part of the namespace
std::string_view Name(ElementType type);
constexpr uint32_t ElementBytes(ElementType type) { return type == ElementType::kF32 ? 4 : 2; }

enum class GroupKind : uint8_t { kFull = 0, kWindow = 1, kLatent = 2, kRecurrent = 3 };
std::string_view Name(GroupKind kind);

// Resuming takes all blocks of such a group; of the others a window, or one state.
inline bool IsKeptWhole(GroupKind kind) { return kind == GroupKind::kFull || kind == GroupKind::kLatent; }

// Layers whose KV has the same lifetime and shape.
struct LayerGroup {
  GroupKind kind = GroupKind::kFull;
  std::vector<uint32_t> layers;  // model layer indices, ascending
  uint32_t kv_heads = 0;
  uint32_t key_dim = 0;    // elements of one head's K row
  uint32_t value_dim = 0;  // elements of one head's V row
  uint32_t window = 0;     // kWindow: positions that a query sees, its own included; else 0
};

struct Geometry {
  std::vector<LayerGroup> groups;
  ElementType key_type = ElementType::kF16;
  ElementType value_type = ElementType::kF16;
  uint32_t block_tokens = 0;

  const LayerGroup& group(GroupId id) const { return groups[id.value()]; }
};

inline constexpr uint32_t kBlockTokensMax = 64;

// K + V of one layer of one token.
uint64_t LayerTokenBytes(const Geometry& geometry, GroupId group);
// K + V of all layers of the group, for one token.
uint64_t BytesPerToken(const Geometry& geometry, GroupId group);
// K of one layer of one block; V follows it.
uint64_t LayerKeyBytes(const Geometry& geometry, GroupId group);
// K + V of one layer of one block: contiguous in a slot.
uint64_t LayerBlockBytes(const Geometry& geometry, GroupId group);
// One slot: LayerBlockBytes for each layer of the group, in order; of a recurrent group one state, as large as what
// its dimensions give for one token.
uint64_t SlotBytes(const Geometry& geometry, GroupId group);

// The smallest of 16, 32, 64 for which K+V of one layer of the group with the smallest rows is at
// least 32 KiB, else 64. Ignores geometry.block_tokens.
uint32_t DeriveBlockTokens(const Geometry& geometry);

// Blocks that a sequence of `tokens` needs resident at once in the group, with `in_flight` tokens
// being computed in one step: all of them, what the window reaches (DESIGN 5), or the states before and after a step.
uint64_t ResidentBlocks(const Geometry& geometry, GroupId group, uint64_t tokens, uint64_t in_flight);

}  // namespace reprise
