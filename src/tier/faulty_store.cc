#include "tier/faulty_store.h"

#include <thread>
#include <utility>

namespace reprise {

FaultyStore::FaultyStore(std::unique_ptr<TierStore> store, const StoreFaults& faults)
    : store_(std::move(store)), faults_(faults), random_(faults.seed) {}

void FaultyStore::SetFaults(const StoreFaults& faults) {
  const std::lock_guard lock(mutex_);
  faults_ = faults;
  random_.seed(faults.seed);
}

bool FaultyStore::Fails(bool read) {
  std::chrono::milliseconds delay;
  bool fails = false;
  {
    const std::lock_guard lock(mutex_);
    delay = faults_.delay;
    fails = faults_.one_in > 0 && (faults_.reads || !read) && random_() % faults_.one_in == 0;
  }
  if (delay.count() > 0) std::this_thread::sleep_for(delay);
  return fails;
}

void FaultyStore::Contains(const NamespaceId& name_space, std::span<const BlockKey> keys, std::span<uint32_t> groups) {
  store_->Contains(name_space, keys, groups);
}

std::optional<TierRun> FaultyStore::FindRun(const NamespaceId& name_space, const Digest& parent,
                                            std::span<const TokenId> wanted, uint32_t groups, bool whole) {
  return store_->FindRun(name_space, parent, wanted, groups, whole);
}

std::vector<NamespaceDigests> FaultyStore::NamespacesWith(std::span<const TokenId> tokens) const {
  return store_->NamespacesWith(tokens);
}

TierOutcome FaultyStore::Read(const TierRead& read, std::span<std::byte> out) {
  return Fails(true) ? TierOutcome::kError : store_->Read(read, out);
}

absl::StatusOr<uint64_t> FaultyStore::Write(const TierRecord& record) {
  if (Fails(false)) return absl::UnavailableError("a fault was wished for");
  return store_->Write(record);
}

absl::StatusOr<TierErased> FaultyStore::Erase(const Digest& tenant) {
  if (Fails(false)) return absl::UnavailableError("a fault was wished for");
  return store_->Erase(tenant);
}

absl::Status FaultyStore::Flush() {
  return Fails(false) ? absl::UnavailableError("a fault was wished for") : store_->Flush();
}

}  // namespace reprise
