#include "prefix/namespace.h"

#include <span>
#include <string>

#include "base/bytes.h"
#include "base/check.h"

namespace reprise {
namespace {

std::span<const std::byte> AsBytes(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }
std::span<const std::byte> AsBytes(const Digest& digest) { return std::as_bytes(std::span(digest.bytes)); }

// Frames the fields of one namespace and hashes each alone and all together.
class NamespaceBuilder {
 public:
  NamespaceBuilder() { all_.Update("reprise/namespace/1"); }

  // REQUIRES: tags come in ascending order.
  void Add(NamespaceTag tag, std::span<const std::byte> bytes) {
    CHECK_LT(last_tag_, static_cast<uint8_t>(tag));
    CHECK_LE(bytes.size(), UINT32_MAX);
    last_tag_ = static_cast<uint8_t>(tag);
    ByteWriter head;
    head.Put(last_tag_);
    head.Put(static_cast<uint32_t>(bytes.size()));
    all_.Update(head.bytes());
    all_.Update(bytes);
    one_.Update("reprise/tag/1");
    one_.Update(head.bytes());
    one_.Update(bytes);
    out_.tags[last_tag_ - 1] = one_.Finish();
  }

  NamespaceDigests Finish() {
    out_.id = NamespaceId{all_.Finish()};
    return out_;
  }

 private:
  Sha256 all_;
  Sha256 one_;
  uint8_t last_tag_ = 0;
  NamespaceDigests out_;
};

}  // namespace

std::vector<std::byte> EncodeGeometry(const Geometry& geometry) {
  // One rank holds everything and no element type has scales yet. The fields stand here already, so
  // that the first split or quantised cache gets other namespaces without another format version.
  constexpr uint32_t kScaleGranularity = 0;
  constexpr uint32_t kRank = 0, kRanks = 1;
  ByteWriter out;
  out.Put(kSlotLayoutVersion);
  out.Put(geometry.block_tokens);
  out.Put(static_cast<uint8_t>(geometry.key_type));
  out.Put(static_cast<uint8_t>(geometry.value_type));
  out.Put(kScaleGranularity);
  for (int parallel = 0; parallel < 2; ++parallel) {  // tensor, then pipeline
    out.Put(kRank);
    out.Put(kRanks);
  }
  out.Put(static_cast<uint32_t>(geometry.groups.size()));
  for (const LayerGroup& group : geometry.groups) {
    out.Put(static_cast<uint8_t>(group.kind));
    out.Put(group.kv_heads);
    out.Put(group.key_dim);
    out.Put(group.value_dim);
    out.Put(group.window);
    out.Put(static_cast<uint32_t>(group.layers.size()));
    for (uint32_t layer : group.layers) out.Put(layer);
  }
  return {out.bytes().begin(), out.bytes().end()};
}

namespace {

// Fields 1 to 7: what is computed.
void AddComputation(NamespaceBuilder& builder, const ComputationIdentity& identity, const Geometry& geometry) {
  builder.Add(NamespaceTag::kModel, AsBytes(identity.model));
  builder.Add(NamespaceTag::kTokenizer, AsBytes(identity.tokenizer));
  builder.Add(NamespaceTag::kAdapters, AsBytes(identity.adapters));
  builder.Add(NamespaceTag::kPosition, AsBytes(identity.position));
  builder.Add(NamespaceTag::kAttention, AsBytes(identity.attention));
  builder.Add(NamespaceTag::kGeometry, EncodeGeometry(geometry));
  builder.Add(NamespaceTag::kNumerics, AsBytes(identity.numerics));
}

}  // namespace

NamespaceDigests DeriveNamespace(const ComputationIdentity& identity, const Geometry& geometry, const Scope& scope) {
  ByteWriter epoch;
  epoch.Put(scope.epoch);
  NamespaceBuilder builder;
  AddComputation(builder, identity, geometry);
  builder.Add(NamespaceTag::kTenant, AsBytes(scope.tenant));
  builder.Add(NamespaceTag::kEpoch, epoch.bytes());
  if (scope.salt) builder.Add(NamespaceTag::kSalt, AsBytes(*scope.salt));
  return builder.Finish();
}

NamespaceDigests DeriveSharedNamespace(const ComputationIdentity& identity, const Geometry& geometry) {
  NamespaceBuilder builder;
  AddComputation(builder, identity, geometry);
  return builder.Finish();
}

}  // namespace reprise
