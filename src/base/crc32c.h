// CRC32C (Castagnoli, RFC 3720 B.4): finds what a disk did to bytes. It says nothing about who wrote them.
//
// Threads: any. Errors: none. Does not allocate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace reprise {

// Of what `crc` is the checksum of, followed by `bytes`: Crc32c(b, Crc32c(a)) is the checksum of a · b. Uses SSE 4.2
// where the CPU has it.
uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t crc = 0);

// The same without any instruction set.
uint32_t Crc32cPortable(std::span<const std::byte> bytes, uint32_t crc = 0);

}  // namespace reprise
