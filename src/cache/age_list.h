// Blocks and tails that nobody uses, in the order in which they were let go of: which of them are expired.
//
// Ownership: views of memory that the cache took. Threads: one. All methods O(1), First but for its limit.
// Design:    DESIGN 6
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/check.h"
#include "prefix/prefix_tree.h"

namespace reprise {

class AgeList {
 public:
  struct Age {
    uint64_t since_ms;
    NodeId older, younger;
    bool listed;
  };

  // ages: [nodes_max], zeroes. Empty: nothing is listed.
  explicit AgeList(std::span<Age> ages) : ages_(ages) {}

  // Puts the node at the young end. REQUIRES: `now_ms` is not before that of any other.
  void LetGo(NodeId id, uint64_t now_ms) {
    if (ages_.empty()) return;
    Remove(id);
    Of(id) = {.since_ms = now_ms, .older = youngest_, .younger = kNoNode, .listed = true};
    (youngest_ == kNoNode ? oldest_ : Of(youngest_).younger) = id;
    youngest_ = id;
  }
  // No-op where it is not listed.
  void Remove(NodeId id) {
    if (ages_.empty() || !Of(id).listed) return;
    const Age& gone = Of(id);
    (gone.older == kNoNode ? oldest_ : Of(gone.older).younger) = gone.younger;
    (gone.younger == kNoNode ? youngest_ : Of(gone.younger).older) = gone.older;
    Of(id).listed = false;
  }
  bool Contains(NodeId id) const { return !ages_.empty() && ages_[id.value()].listed; }
  bool empty() const { return ages_.empty(); }
  uint64_t since_ms(NodeId id) const { return ages_[id.value()].since_ms; }
  NodeId oldest() const { return oldest_; }
  NodeId next(NodeId id) const { return ages_[id.value()].younger; }

 private:
  Age& Of(NodeId id) { return ages_[id.value()]; }

  std::span<Age> ages_;
  NodeId oldest_ = kNoNode, youngest_ = kNoNode;
};

}  // namespace reprise
