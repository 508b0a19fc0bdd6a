#include "tier/disk_store_erased.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/crc32c.h"

namespace reprise {
namespace {

constexpr char kMagic[] = "RPRERASE";
constexpr uint32_t kByteOrderMark = 0x01020304;
constexpr uint32_t kVersion = 1;
constexpr size_t kHeadBytes = 32, kEntryBytes = 40, kChecksumBytes = 8;

template <class T>
T Get(std::span<const std::byte> bytes, size_t at) {
  T out;
  std::memcpy(&out, bytes.data() + at, sizeof(T));
  return out;
}

}  // namespace

void ErasedTenants::Add(const Digest& tenant, uint64_t before) {
  uint64_t& kept = tenants[tenant];
  kept = std::max(kept, before);
  if (tenants.size() <= kErasedTenantsMax) return;
  all_before = sequence_min();
  tenants.clear();
}

bool ErasedTenants::Covers(const Digest& tenant, uint64_t sequence) const {
  if (sequence < all_before) return true;
  const auto it = tenants.find(tenant);
  return it != tenants.end() && sequence < it->second;
}

uint64_t ErasedTenants::sequence_min() const {
  uint64_t most = all_before;
  for (const auto& [tenant, before] : tenants) most = std::max(most, before);
  return most;
}

uint64_t ErasedTenants::file_bytes() const {
  return empty() ? 0 : kHeadBytes + tenants.size() * kEntryBytes + kChecksumBytes;
}

std::vector<std::byte> EncodeErased(const ErasedTenants& erased) {
  ByteWriter out;
  out.PutText(kMagic);
  out.Put(kByteOrderMark);
  out.Put(kVersion);
  out.Put(erased.all_before);
  out.Put(static_cast<uint32_t>(erased.tenants.size()));
  out.Put(uint32_t{0});
  for (const auto& [tenant, before] : erased.tenants) {
    out.PutBytes(std::as_bytes(std::span(tenant.bytes)));
    out.Put(before);
  }
  out.Put(Crc32c(out.bytes()));
  out.Put(uint32_t{0});
  return {out.bytes().begin(), out.bytes().end()};
}

absl::StatusOr<ErasedTenants> DecodeErased(std::span<const std::byte> bytes) {
  const absl::Status bad = absl::DataLossError("a list of purged tenants that is damaged");
  if (bytes.size() < 16 || std::memcmp(bytes.data(), kMagic, 8) != 0 || Get<uint32_t>(bytes, 8) != kByteOrderMark) {
    return bad;
  }
  if (const auto version = Get<uint32_t>(bytes, 12); version > kVersion) {
    return absl::FailedPreconditionError(absl::StrCat("a list of purged tenants of version ", version,
                                                      "; this program knows versions up to ", kVersion));
  }
  if (bytes.size() < kHeadBytes + kChecksumBytes) return bad;
  const auto count = Get<uint32_t>(bytes, 24);
  const std::span<const std::byte> checked = bytes.first(bytes.size() - kChecksumBytes);
  if (count > kErasedTenantsMax || bytes.size() != kHeadBytes + count * kEntryBytes + kChecksumBytes ||
      Crc32c(checked) != Get<uint32_t>(bytes, checked.size()) || Get<uint32_t>(bytes, checked.size() + 4) != 0) {
    return bad;
  }
  ErasedTenants erased{.all_before = Get<uint64_t>(bytes, 16), .tenants = {}};
  for (uint32_t i = 0; i < count; ++i) {
    Digest tenant;
    std::memcpy(tenant.bytes.data(), bytes.data() + kHeadBytes + i * kEntryBytes, tenant.bytes.size());
    erased.tenants[tenant] = Get<uint64_t>(bytes, kHeadBytes + i * kEntryBytes + tenant.bytes.size());
  }
  return erased;
}

absl::StatusOr<ErasedTenants> ReadErased(FileSystem& files, const std::string& directory) {
  const absl::StatusOr<std::unique_ptr<File>> file =
      files.Open(absl::StrCat(directory, "/", kErasedName), FileSystem::Mode::kRead);
  if (absl::IsNotFound(file.status())) return ErasedTenants{};
  if (!file.ok()) return file.status();
  std::vector<std::byte> bytes(kHeadBytes + kErasedTenantsMax * kEntryBytes + kChecksumBytes + 1);
  const absl::StatusOr<size_t> got = (*file)->ReadAt(0, bytes);
  if (!got.ok()) return got.status();
  return DecodeErased(std::span(bytes).first(*got));
}

absl::Status WriteErased(FileSystem& files, const std::string& directory, const ErasedTenants& erased) {
  const std::string path = absl::StrCat(directory, "/", kErasedName);
  if (erased.empty()) {
    absl::Status removed = files.Remove(path);
    return removed.ok() ? files.SyncDirectory(directory) : absl::IsNotFound(removed) ? absl::OkStatus() : removed;
  }
  const std::string made = absl::StrCat(directory, "/", kErasedNewName);
  if (absl::Status removed = files.Remove(made); !removed.ok() && !absl::IsNotFound(removed)) return removed;
  absl::StatusOr<std::unique_ptr<File>> file = files.Open(made, FileSystem::Mode::kCreate);
  if (!file.ok()) return file.status();
  const std::vector<std::byte> bytes = EncodeErased(erased);
  const std::span<const std::byte> piece(bytes);
  absl::Status status = (*file)->WriteAt(0, {&piece, 1});
  if (status.ok()) status = (*file)->Sync();
  if (status.ok()) status = files.Rename(made, path);
  if (status.ok()) status = files.SyncDirectory(directory);
  if (!status.ok()) (void)files.Remove(made);  // if that fails too, the next one removes it
  return status;
}

}  // namespace reprise
