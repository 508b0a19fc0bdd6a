// Rows inside slots: copying the head of one slot to another, and clearing what is not final.
//
// Ownership: views. Threads: functions of their arguments. Errors: none.
// Design:    DESIGN 6, docs/format/block.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/geometry.h"
#include "base/ids.h"

namespace reprise {

// Makes rows [0, rows) of `to` equal to those of `from`; the rest of `to` is unspecified but finite where
// `from` is. REQUIRES: both are slots of one group, rows > 0.
void CopyRows(const Geometry& geometry, GroupId group, std::span<const std::byte> from, std::span<std::byte> to,
              uint32_t rows);

// Sets rows [first_row, block_tokens) of all layers to 0.
void ClearRows(const Geometry& geometry, GroupId group, std::span<std::byte> slot, uint32_t first_row);

}  // namespace reprise
