// Codecs of payloads. All of them are lossless: decoding gives the bytes that were encoded.
//
//   raw      as they are
//   planes   all first bytes of the elements, then all second ones, each plane with zstd where that makes it smaller
//
// There is no level to choose: higher ones were slower and not smaller (tests/codec_bench.cc).
//
// Ownership: nothing is kept but a context of zstd per thread that encodes (under 1 MiB) or decodes (under 256 KiB).
// Threads:   any.
// Errors:    outcomes; nothing aborts on any bytes.
// Design:    DESIGN 8; docs/format/record.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace reprise {

enum class Codec : uint8_t { kRaw = 0, kPlanes = 1 };  // values are part of the record format
std::string_view Name(Codec codec);

// Appends `in` encoded to `out` and returns true; false, and `out` as before, if that is not smaller. `element_bytes`
// is 2 or 4. REQUIRES: in.size() % element_bytes == 0.
bool EncodePlanes(std::span<const std::byte> in, uint32_t element_bytes, std::vector<std::byte>& out);
// False: `in` is not what EncodePlanes made of something as long as `out`. `scratch` may be used again.
bool DecodePlanes(std::span<const std::byte> in, uint32_t element_bytes, std::span<std::byte> out,
                  std::vector<std::byte>& scratch);

}  // namespace reprise
