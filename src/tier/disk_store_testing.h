// What the tests of the disk store share: a small world of prompts in which the bytes of every piece follow from its
// name, so that whatever a store gives can be checked without remembering what was written.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/geometry.h"
#include "base/hash.h"
#include "base/ledger.h"
#include "env/memory_file_system.h"
#include "prefix/block_key.h"
#include "tier/disk_store.h"

namespace reprise::disk_testing {

inline constexpr uint32_t kBlockTokens = 4;
inline constexpr char kDirectory[] = "/cache/disk";

// Two groups, slots of 64 bytes per 1 of `scale`.
inline Geometry SmallGeometry(uint32_t scale = 1) {
  LayerGroup group{.kind = GroupKind::kFull, .layers = {0}, .kv_heads = scale, .key_dim = 4, .value_dim = 4};
  Geometry geometry{.groups = {group, group}, .block_tokens = kBlockTokens};
  geometry.groups[1].kind = GroupKind::kWindow;
  geometry.groups[1].window = 8;
  return geometry;
}

inline Digest TenantDigest(uint32_t tenant) { return Sha256::Of("tenant " + std::to_string(tenant)); }

inline NamespaceDigests Namespace(uint32_t tenant, uint32_t salt = 0) {
  NamespaceDigests out;
  out.id.digest = Sha256::Of("namespace " + std::to_string(tenant) + " " + std::to_string(salt));
  out.tags[static_cast<size_t>(NamespaceTag::kTenant) - 1] = TenantDigest(tenant);
  out.tags[static_cast<size_t>(NamespaceTag::kSalt) - 1] = Sha256::Of("salt " + std::to_string(salt));
  return out;
}

// docs/format/identity.md.
inline BlockKey KeyOf(const Digest& parent, std::span<const TokenId> tokens) {
  return BlockHasher().Next(parent, tokens);
}

// The bytes of a piece: half of them random, as mantissas are, half of them alike.
inline std::vector<std::byte> BytesOf(const NamespaceId& name_space, GroupId group, const Digest& parent,
                                      std::span<const TokenId> tokens, uint64_t bytes) {
  Sha256 hash;
  hash.Update(std::as_bytes(std::span(name_space.digest.bytes)));
  hash.Update(std::as_bytes(std::span(parent.bytes)));
  hash.Update(std::as_bytes(tokens));
  hash.Update(std::to_string(group.value()));
  std::mt19937_64 random(TableHash(hash.Finish()));
  std::vector<std::byte> out(bytes);
  for (size_t i = 0; i < out.size(); i += 2) {
    const uint64_t draw = random();
    out[i] = static_cast<std::byte>(draw);
    if (i + 1 < out.size()) out[i + 1] = static_cast<std::byte>(0x3c + (draw >> 60));
  }
  return out;
}

// A prompt in a namespace: whole blocks and what is left, a tail.
struct Prompt {
  NamespaceDigests name_space;
  std::vector<TokenId> tokens;
  std::vector<BlockKey> keys;  // of its whole blocks

  Prompt(const NamespaceDigests& of, const std::vector<int>& ids) : name_space(of) {
    for (int id : ids) tokens.push_back(TokenId(id));
    for (size_t i = 0; i < blocks(); ++i) keys.push_back(KeyOf(parent(i), block(i)));
  }
  size_t blocks() const { return tokens.size() / kBlockTokens; }
  bool has_tail() const { return tokens.size() % kBlockTokens != 0; }
  size_t pieces() const { return blocks() + has_tail(); }
  std::span<const TokenId> block(size_t i) const {
    return std::span(tokens).subspan(i * kBlockTokens,
                                     std::min<size_t>(kBlockTokens, tokens.size() - i * kBlockTokens));
  }
  const Digest& parent(size_t i) const { return i == 0 ? name_space.id.digest : keys[i - 1].digest; }
  TierRead ReadOf(size_t i, GroupId group) const {
    return {.name_space = name_space.id,
            .group = group,
            .parent = parent(i),
            .first_token = static_cast<uint32_t>(i * kBlockTokens),
            .key = i < blocks() ? std::optional(keys[i]) : std::nullopt,
            .tokens = block(i)};
  }
  std::vector<std::byte> Expected(size_t i, GroupId group, uint64_t bytes) const {
    return BytesOf(name_space.id, group, parent(i), block(i), bytes);
  }
  // A name of its own for each piece.
  std::tuple<Digest, Digest, std::vector<TokenId>, uint32_t> Id(size_t i, GroupId group) const {
    return {name_space.id.digest, parent(i), {block(i).begin(), block(i).end()}, group.value()};
  }
};
using PieceId = std::tuple<Digest, Digest, std::vector<TokenId>, uint32_t>;

// Writes pieces [first, last) of one group: blocks in one record, the tail in one of its own.
inline absl::Status WritePrompt(TierStore& store, const Prompt& prompt, GroupId group, size_t first, size_t last) {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<std::span<const std::byte>> payloads;
  for (size_t i = first; i < last; ++i) bytes.push_back(prompt.Expected(i, group, store.slot_bytes(group)));
  for (const std::vector<std::byte>& each : bytes) payloads.push_back(each);
  const auto write = [&](size_t from, size_t to) {
    const bool tail = from == prompt.blocks();
    return store
        .Write(
            {.name_space = prompt.name_space,
             .group = group,
             .parent = prompt.parent(from),
             .first_token = static_cast<uint32_t>(from * kBlockTokens),
             .keys = tail ? std::span<const BlockKey>() : std::span(prompt.keys).subspan(from, to - from),
             .tokens =
                 tail
                     ? prompt.block(from)
                     : std::span<const TokenId>(prompt.tokens).subspan(from * kBlockTokens, (to - from) * kBlockTokens),
             .payloads = std::span(payloads).subspan(from - first, to - from)})
        .status();
  };
  const size_t blocks_end = std::min(last, prompt.blocks());
  absl::Status status;
  if (first < blocks_end) status = write(first, blocks_end);
  if (status.ok() && last > prompt.blocks()) status = write(prompt.blocks(), last);
  return status;
}
inline absl::Status WritePrompt(TierStore& store, const Prompt& prompt) {
  for (uint32_t g = 0; g < 2; ++g) {
    if (absl::Status status = WritePrompt(store, prompt, GroupId(g), 0, prompt.pieces()); !status.ok()) return status;
  }
  return absl::OkStatus();
}

// kOk only with the right bytes: anything else aborts.
inline TierOutcome ReadPiece(TierStore& store, const Prompt& prompt, size_t i, GroupId group) {
  std::vector<std::byte> out(store.slot_bytes(group), std::byte{0xee});
  const TierOutcome outcome = store.Read(prompt.ReadOf(i, group), out);
  if (outcome == TierOutcome::kOk) CHECK(out == prompt.Expected(i, group, out.size()));
  return outcome;
}
// How many pieces of the prompt are read well.
inline size_t Readable(TierStore& store, const Prompt& prompt) {
  size_t count = 0;
  for (uint32_t g = 0; g < 2; ++g) {
    for (size_t i = 0; i < prompt.pieces(); ++i) count += ReadPiece(store, prompt, i, GroupId(g)) == TierOutcome::kOk;
  }
  return count;
}

struct OpenedStore {
  std::unique_ptr<Ledger> ledger = std::make_unique<Ledger>(uint64_t{1} << 32);
  DiskStore::Opened opened;
  DiskStore* operator->() const { return opened.store.get(); }
  DiskStore& operator*() const { return *opened.store; }
  void Close() { opened.store.reset(); }
};

inline DiskStoreOptions SmallOptions(FileSystem& files) {
  return {.directory = kDirectory,
          .geometry = SmallGeometry(),
          .bytes_max = 64 << 20,
          .segment_bytes = 64 << 10,
          .blocks_max = 1024,
          .codec = {},
          .files = &files,
          .now_s = [] { return uint64_t{1700000000}; }};
}
inline absl::StatusOr<OpenedStore> OpenStore(const DiskStoreOptions& options) {
  OpenedStore out;
  absl::StatusOr<DiskStore::Opened> opened = DiskStore::Open(options, *out.ledger);
  if (!opened.ok()) return opened.status();
  out.opened = *std::move(opened);
  return out;
}

inline std::string PathOf(const std::string& name) { return std::string(kDirectory) + "/" + name; }
inline std::vector<std::string> Names(FileSystem& files) {
  absl::StatusOr<std::vector<std::string>> names = files.ListFiles(kDirectory);
  return names.ok() ? *std::move(names) : std::vector<std::string>();
}
inline uint64_t SizeOf(FileSystem& files, const std::string& path) {
  const auto file = files.Open(path, FileSystem::Mode::kRead);
  if (!file.ok()) return 0;
  const absl::StatusOr<uint64_t> size = (*file)->Size();
  return size.ok() ? *size : 0;
}
// Of all files under the directory.
inline uint64_t DirectoryBytes(FileSystem& files) {
  uint64_t bytes = 0;
  for (const std::string& name : Names(files)) bytes += SizeOf(files, PathOf(name));
  return bytes;
}

inline std::vector<std::byte> FileBytes(FileSystem& files, const std::string& path) {
  std::vector<std::byte> out(SizeOf(files, path));
  const auto file = files.Open(path, FileSystem::Mode::kRead);
  CHECK(file.ok());
  const absl::StatusOr<size_t> got = (*file)->ReadAt(0, out);
  CHECK(got.ok() && *got == out.size());
  return out;
}
// Instead of what is there.
inline void PutFile(FileSystem& files, const std::string& path, std::span<const std::byte> bytes) {
  (void)files.Remove(path);
  const auto file = files.Open(path, FileSystem::Mode::kCreate);
  CHECK(file.ok());
  CHECK((*file)->WriteAt(0, {&bytes, 1}).ok());
}

}  // namespace reprise::disk_testing
