// One type per word (docs/glossary.md). None of these converts to another one.
//
// Ownership: values. Threads: any.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <ostream>

namespace reprise {

template <class Tag, class Rep>
class StrongId {
 public:
  using rep = Rep;
  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep value) : value_(value) {}
  constexpr Rep value() const { return value_; }
  friend constexpr auto operator<=>(StrongId, StrongId) = default;
  friend std::ostream& operator<<(std::ostream& out, StrongId id) { return out << id.value_; }

 private:
  Rep value_ = 0;
};

// One vocabulary id. Spans of it may be read as spans of int32.
using TokenId = StrongId<struct TokenIdTag, int32_t>;
static_assert(sizeof(TokenId) == sizeof(int32_t));

// The physical home of one block of one layer group in that group's pool.
using SlotId = StrongId<struct SlotIdTag, uint32_t>;

// One running generation; unique for the life of the process.
using SequenceId = StrongId<struct SequenceIdTag, uint64_t>;

// Index of a layer group in its Geometry.
using GroupId = StrongId<struct GroupIdTag, uint32_t>;

// In a block table: this block is not resident (a window group, out of reach).
inline constexpr SlotId kNoSlot{UINT32_MAX};

}  // namespace reprise

template <class Tag, class Rep>
struct std::hash<reprise::StrongId<Tag, Rep>> {
  size_t operator()(reprise::StrongId<Tag, Rep> id) const { return std::hash<Rep>()(id.value()); }
};
