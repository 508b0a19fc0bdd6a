// A search tree over ids whose links lie wherever the owner of the ids keeps them: nothing is allocated. It is a
// heap by a hash of the ids as well, which keeps it balanced: every operation is O(log n), expected, whatever the
// order in which ids come and go (Seidel and Aragon, "Randomized search trees", 1996).
//
// Ownership: none; `links(id)` gives a reference to the links of an id, and the caller keeps each tree's top.
// Threads:   those of the links' owner.
// Errors:    none; an id is in at most one tree at a time.
#pragma once

#include <cstdint>
#include <utility>

namespace reprise {

// The id UINT32_MAX is none.
template <class Id>
struct TreapLinks {
  Id left{UINT32_MAX}, right{UINT32_MAX}, up{UINT32_MAX};
};

template <class Id, class LinksOf>
class Treap {
 public:
  static constexpr Id kNone{UINT32_MAX};
  explicit Treap(LinksOf links) : links_(std::move(links)) {}

  // before(a): whether a's place is before that of `id`.
  template <class Before>
  void Insert(Id& top, Id id, Before before) const {
    Id above = kNone;
    Id* link = &top;
    while (*link != kNone) {
      above = *link;
      link = before(above) ? &links_(above).right : &links_(above).left;
    }
    *link = id;
    links_(id) = {.up = above};
    while (links_(id).up != kNone && Priority(links_(id).up) < Priority(id)) RotateUp(top, id);
  }

  void Remove(Id& top, Id id) const {
    while (true) {
      const auto [left, right, up] = links_(id);
      if (left == kNone && right == kNone) break;
      const bool take_left = right == kNone || (left != kNone && Priority(left) > Priority(right));
      RotateUp(top, take_left ? left : right);
    }
    LinkTo(top, id) = kNone;
    links_(id) = {};
  }

  Id First(Id top) const {
    while (top != kNone && links_(top).left != kNone) top = links_(top).left;
    return top;
  }
  Id Last(Id top) const {
    while (top != kNone && links_(top).right != kNone) top = links_(top).right;
    return top;
  }
  Id Next(Id id) const {
    if (links_(id).right != kNone) return First(links_(id).right);
    Id above = links_(id).up;
    for (; above != kNone && links_(above).right == id; above = links_(id).up) id = above;
    return above;
  }
  Id Previous(Id id) const {
    if (links_(id).left != kNone) return Last(links_(id).left);
    Id above = links_(id).up;
    for (; above != kNone && links_(above).left == id; above = links_(id).up) id = above;
    return above;
  }
  // The first id for which before(id) is false. REQUIRES: it is true for none after that.
  template <class Before>
  Id LowerBound(Id top, Before before) const {
    Id found = kNone;
    while (top != kNone) {
      const bool right = before(top);
      if (!right) found = top;
      top = right ? links_(top).right : links_(top).left;
    }
    return found;
  }

  // For integrity checks: whether an id's links agree with those of what is above it, and the heap's order holds.
  bool IsLinked(Id top, Id id) const {
    const Id up = links_(id).up;
    if (up == kNone) return top == id;
    return (links_(up).left == id || links_(up).right == id) && Priority(up) >= Priority(id);
  }

 private:
  // A mixture in which every bit of the id counts: ids that come at regular distances must not make a chain.
  static uint32_t Priority(Id id) {
    uint32_t x = id.value();
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
  }

  Id& LinkTo(Id& top, Id id) const {
    const Id up = links_(id).up;
    if (up == kNone) return top;
    return links_(up).left == id ? links_(up).left : links_(up).right;
  }
  // Exchanges an id with the one above it; the order stays.
  void RotateUp(Id& top, Id id) const {
    const Id above = links_(id).up;
    LinkTo(top, above) = id;
    links_(id).up = links_(above).up;
    const bool left = links_(above).left == id;
    Id& inner = left ? links_(id).right : links_(id).left;
    (left ? links_(above).left : links_(above).right) = inner;
    if (inner != kNone) links_(inner).up = above;
    inner = above;
    links_(above).up = id;
  }

  LinksOf links_;
};

}  // namespace reprise
