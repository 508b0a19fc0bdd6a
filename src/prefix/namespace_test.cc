#include "prefix/namespace.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "base/bytes.h"

namespace reprise {
namespace {

// docs/format/identity.md, test vectors.
Geometry VectorGeometry() {
  const auto group = [](GroupKind kind, std::vector<uint32_t> layers, uint32_t window) {
    return LayerGroup{
        .kind = kind, .layers = std::move(layers), .kv_heads = 1, .key_dim = 256, .value_dim = 256, .window = window};
  };
  return {.groups = {group(GroupKind::kWindow, {0, 1}, 512), group(GroupKind::kFull, {2}, 0)}, .block_tokens = 64};
}
ComputationIdentity VectorIdentity() {
  ComputationIdentity identity;
  identity.model = Sha256::Of("model");
  identity.tokenizer = Sha256::Of("tokenizer");
  identity.position = "position";
  identity.attention = "attention";
  identity.numerics = "numerics";
  return identity;
}
Scope VectorScope() { return {.tenant = "team-a", .epoch = 418, .salt = std::nullopt}; }

std::string Derive(const ComputationIdentity& identity, const Scope& scope) {
  return DeriveNamespace(identity, VectorGeometry(), scope).id.digest.Hex();
}

TEST(Namespace, GeometryMatchesTheDocumentByteByByte) {
  std::string hex;
  for (std::byte byte : EncodeGeometry(VectorGeometry())) {
    constexpr char kDigits[] = "0123456789abcdef";
    hex += kDigits[static_cast<uint8_t>(byte) >> 4];
    hex += kDigits[static_cast<uint8_t>(byte) & 15];
  }
  EXPECT_EQ(hex,
            "0100000040000000010100000000000000000100000000000000010000000200"
            "0000010100000000010000000100000002000002000000000000000100000000"
            "010000000001000000010000000000000100000002000000");
}

TEST(Namespace, MatchesTheVectorsOfTheDocument) {
  ComputationIdentity identity = VectorIdentity();
  Scope scope = VectorScope();
  EXPECT_EQ(Derive(identity, scope), "1190c0da8c2fbf236adda89b7e6674d888e4e9ebd68dd299b3498615c859042c");
  scope.salt = "";
  EXPECT_EQ(Derive(identity, scope), "33c27b12985a4a1210a8c15d44741c712e7035485efb54b4d38d8a46aa6fbca1");
  scope.salt = "s";
  EXPECT_EQ(Derive(identity, scope), "075ae473eb300b7e41b85a396d1cc83f767b8e9edf8fb91a04c2343f571120a0");
  ByteWriter adapters;
  adapters.Put(uint32_t{2});
  for (const auto& [name, scale] : {std::pair("lora-1", 0.5f), std::pair("lora-2", 1.0f)}) {
    const Digest content = Sha256::Of(name);
    adapters.PutBytes(std::as_bytes(std::span(content.bytes)));
    adapters.Put(scale);
  }
  identity.adapters.assign(reinterpret_cast<const char*>(adapters.bytes().data()), adapters.bytes().size());
  EXPECT_EQ(Derive(identity, VectorScope()), "e7b2d94ab86db7e5fb97f39b5718f189ac5610c65265a164426db12906151cf6");
}

TEST(Namespace, TheSharedScopeMatchesTheVectorAndHasNoTenant) {
  const NamespaceDigests shared = DeriveSharedNamespace(VectorIdentity(), VectorGeometry());
  EXPECT_EQ(shared.id.digest.Hex(), "4f3d60d84ed2b809eba02da37738fb422e5169d8b76b92dbc5f1aceeeeecaffd");
  const NamespaceDigests own = DeriveNamespace(VectorIdentity(), VectorGeometry(), VectorScope());
  for (size_t tag = 0; tag < kNamespaceTags; ++tag)
    EXPECT_EQ(shared.tags[tag], tag < 7 ? own.tags[tag] : std::nullopt) << tag + 1;
}

TEST(Namespace, TagDigestsMatchTheVectorsOfTheDocument) {
  Scope scope = VectorScope();
  const NamespaceDigests unsalted = DeriveNamespace(VectorIdentity(), VectorGeometry(), scope);
  EXPECT_FALSE(unsalted.tag(NamespaceTag::kSalt).has_value());
  scope.salt = "";
  const NamespaceDigests salted = DeriveNamespace(VectorIdentity(), VectorGeometry(), scope);
  const char* expected[kNamespaceTags] = {
      "cedaf814e806996e7f0a395e49311dc44a97351088ac65ee5df5cc6de4143f88",
      "e317c7f98898a81624b577bda66bbdd30e35e948da2187b68fcae3ca174f6133",
      "f50b364544652653c25f2dd596c93d8452fdefa0c93749330cf2702ec90d7f84",
      "994e24d7de8d13d01edf23a952c1e3f90808da98632352cb5b7149de4b0a115f",
      "2a6ad974dd2726947c87178d88c3e559544a4638d747f62d4ee181984fc40d91",
      "9e0fefaa36294f50645d457f453e23f37368b737f5ad0696784b8ea21fd4cd62",
      "42d147c616848cb37b79109052f3136bec72f1793b9a8724a96cca475ff57cb4",
      "46f690027a44cf00799824b36bda9cef9c21abf0c355f09637caf27fb2a29918",
      "b879f28b83e1df05ea6f9d7efc1082a0724f41c429990a619c67a09eddfab0bc",
      "492e74a101b5af52f7f5aaa6e6fbf18a1ab001fd3074dce8fb83358497a3aa36",
  };
  for (size_t i = 0; i < kNamespaceTags; ++i) {
    const NamespaceTag tag = static_cast<NamespaceTag>(i + 1);
    ASSERT_TRUE(salted.tag(tag).has_value()) << Name(tag);
    EXPECT_EQ(salted.tag(tag)->Hex(), expected[i]) << Name(tag);
    if (tag == NamespaceTag::kSalt) continue;
    EXPECT_EQ(unsalted.tag(tag), salted.tag(tag)) << Name(tag);
  }
}

// cases/identity 1-7, 15-17: each thing alone changes the namespace and exactly the digest of its tag.
TEST(Namespace, EachFieldAloneMakesAnotherNamespaceAndIsNamed) {
  struct World {
    ComputationIdentity identity = VectorIdentity();
    Geometry geometry = VectorGeometry();
    Scope scope = VectorScope();
  };
  struct Change {
    NamespaceTag tag;
    std::function<void(World&)> make;
  };
  const std::vector<Change> changes = {
      {NamespaceTag::kModel, [](World& w) { w.identity.model.bytes[31] ^= 1; }},
      {NamespaceTag::kTokenizer, [](World& w) { w.identity.tokenizer.bytes[0] ^= 1; }},
      {NamespaceTag::kAdapters, [](World& w) { w.identity.adapters = "one"; }},
      {NamespaceTag::kPosition, [](World& w) { w.identity.position += "1"; }},
      {NamespaceTag::kAttention, [](World& w) { w.identity.attention += "1"; }},
      {NamespaceTag::kGeometry, [](World& w) { w.geometry.block_tokens = 32; }},
      {NamespaceTag::kGeometry, [](World& w) { w.geometry.key_type = ElementType::kBf16; }},
      {NamespaceTag::kGeometry, [](World& w) { w.geometry.value_type = ElementType::kBf16; }},
      {NamespaceTag::kGeometry, [](World& w) { w.geometry.groups[0].window = 511; }},
      {NamespaceTag::kGeometry, [](World& w) { w.geometry.groups[0].kv_heads = 2; }},
      {NamespaceTag::kGeometry, [](World& w) { w.geometry.groups[1].key_dim = 128; }},
      {NamespaceTag::kGeometry, [](World& w) { w.geometry.groups[1].value_dim = 128; }},
      {NamespaceTag::kGeometry, [](World& w) { w.geometry.groups[1].layers = {3}; }},
      {NamespaceTag::kGeometry, [](World& w) { std::swap(w.geometry.groups[0], w.geometry.groups[1]); }},
      {NamespaceTag::kGeometry, [](World& w) { w.geometry.groups[0].kind = GroupKind::kFull; }},
      {NamespaceTag::kNumerics, [](World& w) { w.identity.numerics = "numerics2"; }},
      {NamespaceTag::kTenant, [](World& w) { w.scope.tenant = "team-b"; }},
      {NamespaceTag::kEpoch, [](World& w) { w.scope.epoch = 419; }},
      {NamespaceTag::kSalt, [](World& w) { w.scope.salt = ""; }},
      {NamespaceTag::kSalt, [](World& w) { w.scope.salt = "s"; }},
  };
  const World plain;
  const NamespaceDigests before = DeriveNamespace(plain.identity, plain.geometry, plain.scope);
  EXPECT_EQ(before, DeriveNamespace(World().identity, World().geometry, World().scope));  // control
  std::set<Digest> seen = {before.id.digest};
  for (size_t i = 0; i < changes.size(); ++i) {
    World world;
    changes[i].make(world);
    const NamespaceDigests after = DeriveNamespace(world.identity, world.geometry, world.scope);
    EXPECT_TRUE(seen.insert(after.id.digest).second) << "change " << i << " gives a namespace seen before";
    for (size_t tag = 1; tag <= kNamespaceTags; ++tag) {
      const NamespaceTag which = static_cast<NamespaceTag>(tag);
      EXPECT_EQ(before.tag(which) != after.tag(which), which == changes[i].tag)
          << "change " << i << ", " << Name(which);
    }
  }
}

// cases/identity 13: moving a byte over a field boundary keeps the concatenation and changes the namespace.
TEST(Namespace, FieldBoundariesMatter) {
  ComputationIdentity left = VectorIdentity(), right = VectorIdentity();
  left.position = "ab";
  left.attention = "c";
  right.position = "a";
  right.attention = "bc";
  EXPECT_NE(Derive(left, VectorScope()), Derive(right, VectorScope()));
  right = left;
  EXPECT_EQ(Derive(left, VectorScope()), Derive(right, VectorScope()));
}

TEST(Namespace, SaltOtherAbsentEmptyDiffer) {
  Scope absent = VectorScope(), empty = VectorScope(), one = VectorScope(), other = VectorScope();
  empty.salt = "";
  one.salt = "one";
  other.salt = "other";
  std::set<std::string> all;
  for (const Scope& scope : {absent, empty, one, other}) all.insert(Derive(VectorIdentity(), scope));
  EXPECT_EQ(all.size(), 4u);
  EXPECT_EQ(Derive(VectorIdentity(), one), Derive(VectorIdentity(), Scope(one)));  // control
}

// cases/identity 17: no salt of one tenant gives what another tenant has.
TEST(Namespace, ASaltCannotStandInForTenantOrEpoch) {
  Scope victim = {.tenant = "a", .epoch = 1, .salt = std::nullopt};
  // The bytes that would follow if tags were not ordered and framed.
  ByteWriter forged;
  forged.Put(uint8_t{8});
  forged.Put(uint32_t{1});
  forged.PutText("a");
  Scope attacker = {.tenant = "b", .epoch = 1, .salt = std::nullopt};
  attacker.salt.emplace(reinterpret_cast<const char*>(forged.bytes().data()), forged.bytes().size());
  EXPECT_NE(Derive(VectorIdentity(), victim), Derive(VectorIdentity(), attacker));
}

}  // namespace
}  // namespace reprise
