#include "prefix/block_key.h"

#include "base/check.h"

namespace reprise {
namespace {

std::span<const std::byte> AsBytes(const Digest& digest) { return std::as_bytes(std::span(digest.bytes)); }
std::span<const std::byte> AsBytes(const uint32_t& value) { return std::as_bytes(std::span(&value, 1)); }

}  // namespace

BlockKey BlockHasher::Next(const Digest& previous, std::span<const TokenId> tokens,
                           std::span<const BlockExtra> extras) {
  CHECK_LE(tokens.size(), UINT32_MAX);
  const uint32_t count = static_cast<uint32_t>(tokens.size());
  hash_.Update("reprise/block/1");
  hash_.Update(AsBytes(previous));
  hash_.Update(AsBytes(count));
  hash_.Update(std::as_bytes(tokens));
  for (const BlockExtra& extra : extras) {
    constexpr uint8_t kContentTag = 1;
    constexpr uint32_t kContentBytes = 36;
    CHECK_LT(extra.offset, count);
    hash_.Update(std::as_bytes(std::span(&kContentTag, 1)));
    hash_.Update(AsBytes(kContentBytes));
    hash_.Update(AsBytes(extra.offset));
    hash_.Update(AsBytes(extra.content));
  }
  return BlockKey{hash_.Finish()};
}

Digest BlockHasher::Reroot(const Digest& last, const NamespaceId& name_space) {
  hash_.Update("reprise/reroot/1");
  hash_.Update(AsBytes(last));
  hash_.Update(AsBytes(name_space.digest));
  return hash_.Finish();
}

}  // namespace reprise
