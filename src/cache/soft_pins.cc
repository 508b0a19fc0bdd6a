// Soft pins: prefixes whose blocks go last for a while. They order evictions and nothing else, so an admission never
// waits for one.
#include <algorithm>

#include "base/check.h"
#include "cache/kv_cache_impl.h"

namespace reprise {

uint32_t KvCache::Impl::SoftPinPrefix(const NamespaceDigests& digests, std::span<const TokenId> prefix,
                                      uint32_t ttl_ms) {
  if (options.soft_pin_blocks == 0) return 0;
  EndSoftPins();
  const Asker asker = AskerOf(digests, prefix);
  const std::optional<NodeId> root = tree.FindRoot(NamespaceAt(asker, 0));
  if (!root) return 0;
  NodeId tip = *root;
  uint32_t blocks = 0;
  for (; blocks < options.soft_pin_blocks && (blocks + 1) * block_tokens() <= prefix.size(); ++blocks) {
    const std::span<const TokenId> tokens = prefix.subspan(blocks * block_tokens(), block_tokens());
    const Digest from = Cross(tip, blocks, asker);
    if (from != tree.digest(tip)) break;
    const std::optional<NodeId> child = tree.FindBlock(tip, Key(from, tokens), tokens);
    if (!child || IsExpired(*child)) break;
    tip = *child;
  }
  if (blocks == 0) return 0;
  tip = tree.LastBlock(tip);
  for (uint32_t i = 0; i < soft_pins; ++i)  // the same again is renewed
    if (memory.soft_pins[i].tip == tip) {
      EndSoftPin(i);
      break;
    }
  const auto cost = [&] {
    uint32_t more = 0;
    for (NodeId node = tip; !tree.IsRoot(node); node = BlockBefore(node)) more += !IsSoftPinned(node);
    return more;
  };
  while (soft_pinned + cost() > options.soft_pin_blocks) EndSoftPin(0);
  CHECK_LT(soft_pins, memory.soft_pins.size());  // no two end at one block
  memory.soft_pins[soft_pins++] = {.tip = tip, .until_ms = now_ms + ttl_ms};
  for (NodeId node = tip; !tree.IsRoot(node); node = BlockBefore(node))
    if (memory.soft_pins_of[node.value()]++ == 0) Protect(node, true);
  // What resuming at its end takes.
  NodeId node = tip;
  for (uint32_t block = blocks; block > 0; --block, node = BlockBefore(node))
    for (Group& group : groups)
      if (group.window != 0 && block > FirstBlock(group, blocks * block_tokens() - 1) &&
          node_slot(node, group.id) != kNoSlot)
        Keep(group, node_slot(node, group.id), kSoftPinnedLevel);
  return blocks * block_tokens();
}

void KvCache::Impl::EndSoftPins() {
  for (uint32_t i = soft_pins; i > 0; --i)
    if (memory.soft_pins[i - 1].until_ms <= now_ms) EndSoftPin(i - 1);
}

void KvCache::Impl::EndSoftPin(uint32_t index) {
  const NodeId tip = memory.soft_pins[index].tip;
  std::copy(memory.soft_pins.begin() + index + 1, memory.soft_pins.begin() + soft_pins,
            memory.soft_pins.begin() + index);
  --soft_pins;
  for (NodeId node = tip; !tree.IsRoot(node); node = BlockBefore(node))
    if (--memory.soft_pins_of[node.value()] == 0) Protect(node, false);
}

// A block that is going is the last of all prefixes that it is in: they end before it from now on.
void KvCache::Impl::ShortenSoftPins(NodeId node) {
  if (!IsSoftPinned(node)) return;
  Protect(node, false);
  memory.soft_pins_of[node.value()] = 0;
  const NodeId before = BlockBefore(node);
  for (uint32_t i = soft_pins; i > 0; --i) {
    NodeId& tip = memory.soft_pins[i - 1].tip;
    if (tip != node) continue;
    tip = before;
    bool ends = tree.IsRoot(before);
    for (uint32_t j = 0; j < soft_pins && !ends; ++j) {  // two of one prefix are one
      SoftPin& same = memory.soft_pins[j];
      if (j == i - 1 || same.tip != before) continue;
      same.until_ms = std::max(same.until_ms, memory.soft_pins[i - 1].until_ms);
      ends = true;
    }
    if (ends) EndSoftPin(i - 1);
  }
}

void KvCache::Impl::Protect(NodeId node, bool soft_pin) {
  if (soft_pin)
    ++soft_pinned;
  else
    --soft_pinned;
  if (has_full) eviction.SetSoftPinned(node, soft_pin);
  if (soft_pin) return;
  for (Group& group : groups) {
    const SlotId slot = node_slot(node, group.id);
    if (group.window == 0 || slot == kNoSlot || KeepLevel(group, slot) != kSoftPinnedLevel) continue;
    group.reusable.Move(slot, TenantOf(node) * kKeepLevels + 1);
  }
}

void KvCache::Impl::CheckSoftPins() const {
  if (memory.soft_pins_of.empty()) return;
  std::vector<uint32_t> pins(tree.nodes_max());
  uint32_t blocks = 0;
  for (const SoftPin& pin : memory.soft_pins.first(soft_pins)) {
    CHECK(tree.Exists(pin.tip) && !tree.IsRoot(pin.tip) && !tree.IsTail(pin.tip));
    for (NodeId node = pin.tip; !tree.IsRoot(node); node = BlockBefore(node)) ++pins[node.value()];
  }
  for (uint32_t i = 0; i < pins.size(); ++i) {
    CHECK_EQ(memory.soft_pins_of[i], pins[i]);
    blocks += pins[i] > 0;
    if (has_full && tree.Exists(NodeId(i)) && !tree.IsRoot(NodeId(i)))
      CHECK_EQ(eviction.soft_pinned(NodeId(i)), pins[i] > 0);
  }
  CHECK_EQ(soft_pinned, blocks);
  CHECK_LE(soft_pinned, options.soft_pin_blocks);
}

}  // namespace reprise
