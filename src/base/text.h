// Small questions about text.
//
// Ownership: none. Threads: any. Errors: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace reprise {

// Whether a byte of UTF-8 is a character's first one.
constexpr bool BeginsCharacter(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) != 0x80; }

// "1,234"
std::string WithCommas(uint64_t number);

// For a terminal: control characters but ends of lines and tabs become U+FFFD, so that text of others cannot steer it.
std::string WithoutControls(std::string_view text);

// Levenshtein's distance, in bytes. O(|a| |b|).
size_t EditDistance(std::string_view a, std::string_view b);

}  // namespace reprise
