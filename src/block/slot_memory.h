// The bytes of slots when an engine keeps K and V in memory of its own: on an accelerator, in its own layout,
// packed or not. The cache then knows slots by number alone and asks for the only two things that it ever does
// to their bytes.
//
// A row of a slot is the K and V of one token in all layers of the group, wherever they lie. A slot of a recurrent
// group is one state: CopyRows copies all of it, ClearRows is not called.
//
// Rows past a sequence's length hold what earlier sequences left there. If an attention touches them at all (0 times
// NaN is NaN), all memory must be finite before its first use, and ClearRows keeps it so.
//
// Ownership: the engine's; it must outlive the cache.
// Threads:   called on the thread that uses the cache, within the call that needs it, never after it.
// Order:     a call may be queued instead of done (on the stream of an accelerator, say), as long as it takes
//            effect after everything that the engine had queued before it and before everything queued after.
// Errors:    neither may fail. An engine that can only fail must end the process or never read the slot.
// Design:    DESIGN 3, 6; docs/library.md
#pragma once

#include <cstdint>

#include "base/ids.h"

namespace reprise {

class SlotMemory {
 public:
  virtual ~SlotMemory() = default;

  // Makes rows [0, rows) of `to` equal to those of `from`, bit for bit; the rest of `to` may become the rest of
  // `from` or stay as it is. 0 < rows <= block_tokens; the slots are two of one group. May be queued: `from` is
  // free to be given out again, and written, as soon as this returns.
  virtual void CopyRows(GroupId group, SlotId from, SlotId to, uint32_t rows) = 0;

  // Rows [first_row, block_tokens) were prepared and never committed; they may hold anything. Makes them finite
  // (zero, say). An attention that never touches rows past a sequence's length may do nothing here.
  virtual void ClearRows(GroupId group, SlotId slot, uint32_t first_row) = 0;
};

}  // namespace reprise
