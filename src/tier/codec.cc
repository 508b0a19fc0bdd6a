#include "tier/codec.h"

#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "base/check.h"

namespace reprise {
namespace {

// Elements are split, and each plane compressed, in chunks: of the size of a block of zstd's, so that nothing is lost,
// and so that two planes of one stay in a core's second cache and no context grows with the slot.
constexpr size_t kChunkElements = 128 << 10;

struct FreeContext {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

// What shrinks is the distribution of exponents; strings that repeat are accidents, and looking for them costs time in
// both directions and, since they cut the literals apart, size: for bf16 level 1 as it comes gives 1.46 and level
// 3 1.43, this 1.48 in half of the time. Level 6: a tenth of the speed, 1 % smaller for f16.
void SetParameters(ZSTD_CCtx* context) {
  for (const auto& [parameter, value] :
       {std::pair{ZSTD_c_compressionLevel, 1}, std::pair{ZSTD_c_minMatch, 7}, std::pair{ZSTD_c_hashLog, 6}})
    CHECK(!ZSTD_isError(ZSTD_CCtx_setParameter(context, parameter, value)));
}

// Of a thread that encodes or decodes: making a context costs as much as a chunk.
ZSTD_CCtx& Compressor() {
  thread_local const std::unique_ptr<ZSTD_CCtx, FreeContext> context = [] {
    std::unique_ptr<ZSTD_CCtx, FreeContext> made(ZSTD_createCCtx());
    CHECK(made != nullptr);
    SetParameters(made.get());
    return made;
  }();
  return *context;
}
ZSTD_DCtx& Decompressor() {
  thread_local const std::unique_ptr<ZSTD_DCtx, FreeContext> context(ZSTD_createDCtx());
  CHECK(context != nullptr);
  return *context;
}

// The constant number of planes lets the compiler use its shuffles: 12 GB/s against 1.
template <uint32_t kPlanes>
void Split(const std::byte* in, size_t elements, std::byte* planes) {
  for (size_t i = 0; i < elements; ++i)
    for (uint32_t p = 0; p < kPlanes; ++p) planes[p * elements + i] = in[i * kPlanes + p];
}

template <uint32_t kPlanes>
void Join(const std::byte* const planes[kPlanes], size_t elements, std::byte* out) {
  for (size_t i = 0; i < elements; ++i)
    for (uint32_t p = 0; p < kPlanes; ++p) out[i * kPlanes + p] = planes[p][i];
}

// Appends the plane compressed; false, and `out` as it was, if that saves less than a 32nd of it: the time to decode it
// would bring nothing.
bool AppendCompressed(std::span<const std::byte> plane, std::vector<std::byte>& out) {
  const size_t begin = out.size(), most = plane.size() - plane.size() / 32;
  out.resize(begin + most);
  const size_t got = ZSTD_compress2(&Compressor(), out.data() + begin, most, plane.data(), plane.size());
  const bool smaller = !ZSTD_isError(got) && got < most;  // the error is that there is not so much room
  out.resize(smaller ? begin + got : begin);
  return smaller;
}

}  // namespace

std::string_view Name(Codec codec) { return codec == Codec::kRaw ? "raw" : "planes"; }

bool EncodePlanes(std::span<const std::byte> in, uint32_t element_bytes, std::vector<std::byte>& out) {
  CHECK(element_bytes == 2 || element_bytes == 4);
  CHECK_EQ(in.size() % element_bytes, 0u);
  thread_local std::vector<std::byte> planes;
  const size_t begin = out.size();
  for (size_t at = 0; at < in.size();) {
    const size_t elements = std::min(kChunkElements, (in.size() - at) / element_bytes);
    planes.resize(elements * element_bytes);
    (element_bytes == 2 ? Split<2> : Split<4>)(in.data() + at, elements, planes.data());
    const size_t lengths_at = out.size();
    out.resize(lengths_at + element_bytes * sizeof(uint32_t));
    for (uint32_t p = 0; p < element_bytes; ++p) {
      const std::span plane = std::span(planes).subspan(p * elements, elements);
      const size_t plane_at = out.size();
      if (!AppendCompressed(plane, out)) out.insert(out.end(), plane.begin(), plane.end());
      const uint32_t length = static_cast<uint32_t>(out.size() - plane_at);
      std::memcpy(out.data() + lengths_at + p * sizeof(length), &length, sizeof(length));
    }
    at += elements * element_bytes;
  }
  if (out.size() - begin < in.size()) return true;
  out.resize(begin);
  return false;
}

bool DecodePlanes(std::span<const std::byte> in, uint32_t element_bytes, std::span<std::byte> out,
                  std::vector<std::byte>& scratch) {
  CHECK(element_bytes == 2 || element_bytes == 4);
  if (out.size() % element_bytes != 0) return false;
  scratch.resize(std::max(scratch.size(), std::min(out.size(), kChunkElements * element_bytes)));
  for (size_t at = 0; at < out.size();) {
    const size_t elements = std::min(kChunkElements, (out.size() - at) / element_bytes);
    uint32_t lengths[4];
    const size_t lengths_bytes = element_bytes * sizeof(uint32_t);
    if (in.size() < lengths_bytes) return false;
    std::memcpy(lengths, in.data(), lengths_bytes);
    in = in.subspan(lengths_bytes);
    const std::byte* planes[4];
    for (uint32_t p = 0; p < element_bytes; ++p) {
      if (lengths[p] > elements || lengths[p] > in.size()) return false;
      planes[p] = in.data();
      if (lengths[p] < elements) {
        std::byte* plane = scratch.data() + p * elements;
        if (ZSTD_decompressDCtx(&Decompressor(), plane, elements, in.data(), lengths[p]) != elements) return false;
        planes[p] = plane;
      }
      in = in.subspan(lengths[p]);
    }
    if (element_bytes == 2)
      Join<2>(planes, elements, out.data() + at);
    else
      Join<4>(planes, elements, out.data() + at);
    at += elements * element_bytes;
  }
  return in.empty();
}

}  // namespace reprise
