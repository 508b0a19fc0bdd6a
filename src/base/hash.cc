#include "base/hash.h"

#include <openssl/evp.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace reprise {

std::string Digest::Hex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(2 * bytes.size());
  for (uint8_t byte : bytes) {
    out.push_back(kDigits[byte >> 4]);
    out.push_back(kDigits[byte & 15]);
  }
  return out;
}

absl::StatusOr<Digest> Digest::FromHex(std::string_view hex) {
  Digest digest;
  if (hex.size() != 2 * digest.bytes.size())
    return absl::InvalidArgumentError(absl::StrCat("a digest has 64 hex digits, got ", hex.size()));
  for (size_t i = 0; i < hex.size(); ++i) {
    const char c = hex[i];
    const int nibble = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (nibble < 0) return absl::InvalidArgumentError(absl::StrCat("not a hex digit at ", i));
    digest.bytes[i / 2] = static_cast<uint8_t>(digest.bytes[i / 2] << 4 | nibble);
  }
  return digest;
}

struct Sha256::Context {
  EVP_MD* algorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);  // fetched once: a fetch per hash costs 1 us
  EVP_MD_CTX* state = EVP_MD_CTX_new();
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  CHECK(context_->algorithm != nullptr && context_->state != nullptr);
  CHECK_EQ(EVP_DigestInit_ex2(context_->state, context_->algorithm, nullptr), 1);
}

Sha256::~Sha256() {
  EVP_MD_CTX_free(context_->state);
  EVP_MD_free(context_->algorithm);
}

void Sha256::Update(std::span<const std::byte> bytes) {
  CHECK_EQ(EVP_DigestUpdate(context_->state, bytes.data(), bytes.size()), 1);
}

Digest Sha256::Finish() {
  Digest digest;
  unsigned int length = 0;
  CHECK_EQ(EVP_DigestFinal_ex(context_->state, digest.bytes.data(), &length), 1);
  CHECK_EQ(length, digest.bytes.size());
  CHECK_EQ(EVP_DigestInit_ex2(context_->state, nullptr, nullptr), 1);
  return digest;
}

Digest Sha256::Of(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.Update(bytes);
  return hash.Finish();
}

}  // namespace reprise
