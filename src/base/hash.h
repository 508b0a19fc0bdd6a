// SHA-256 (FIPS 180-4, through OpenSSL) and the digest type that identity is made of. Digests are
// never truncated where they decide a load.
//
// Ownership: a Sha256 owns its OpenSSL context. Threads: one at a time per object.
// Errors:    OpenSSL out of memory aborts; there is no other.
// Design:    docs/format/identity.md
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace reprise {

struct Digest {
  std::array<uint8_t, 32> bytes{};

  friend auto operator<=>(const Digest&, const Digest&) = default;
  std::string Hex() const;  // 64 lower-case digits
  static absl::StatusOr<Digest> FromHex(std::string_view hex);
};

// Distinct digests for distinct things: the identity of a computation (and of who may reuse it), and
// of one block in it.
struct NamespaceId {
  Digest digest;
  friend auto operator<=>(const NamespaceId&, const NamespaceId&) = default;
};
struct BlockKey {
  Digest digest;
  friend auto operator<=>(const BlockKey&, const BlockKey&) = default;
};

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void Update(std::span<const std::byte> bytes);
  void Update(std::string_view text) { Update(std::as_bytes(std::span(text.data(), text.size()))); }
  // Returns the digest and starts anew. Does not allocate.
  Digest Finish();

  static Digest Of(std::span<const std::byte> bytes);
  static Digest Of(std::string_view text) { return Of(std::as_bytes(std::span(text.data(), text.size()))); }

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

// A hash-table hash: the first 8 bytes of a digest, which are uniform already.
inline size_t TableHash(const Digest& digest) {
  size_t out;
  std::memcpy(&out, digest.bytes.data(), sizeof(out));
  return out;
}

}  // namespace reprise

template <>
struct std::hash<reprise::BlockKey> {
  size_t operator()(const reprise::BlockKey& key) const { return reprise::TableHash(key.digest); }
};
template <>
struct std::hash<reprise::NamespaceId> {
  size_t operator()(const reprise::NamespaceId& id) const { return reprise::TableHash(id.digest); }
};
