#include "base/ledger.h"

#include <sys/mman.h>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/check.h"

namespace reprise {
namespace {

constexpr uint64_t kHugePageBytes = 2 << 20;

uint64_t MappedBytes(uint64_t bytes) {
  return bytes >= kHugePageBytes ? RoundUp(bytes, kHugePageBytes) + kHugePageBytes : RoundUp(bytes, 4096);
}

}  // namespace

Region& Region::operator=(Region&& other) noexcept {
  if (this == &other) return *this;
  Release();
  ledger_ = std::exchange(other.ledger_, nullptr);
  component_ = std::move(other.component_);
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  return *this;
}

void Region::Release() {
  if (ledger_ == nullptr) return;
  if (data_ != nullptr) {
    munmap(data_, size_ >= kHugePageBytes ? RoundUp(size_, kHugePageBytes) : RoundUp(size_, 4096));
  }
  ledger_->Return(component_, size_);
  ledger_ = nullptr;
  data_ = nullptr;
  size_ = 0;
}

Ledger::~Ledger() { CHECK_EQ(taken_bytes_, 0u); }

Region Ledger::Reserve(std::string_view component, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes > limit_bytes_ - taken_bytes_)
    CheckFailed(__FILE__, __LINE__,
                absl::StrCat("ledger: ", std::string(component), " asks for ", bytes, " B, left ",
                             limit_bytes_ - taken_bytes_, " of ", limit_bytes_));
  taken_bytes_ += bytes;
  by_component_[std::string(component)] += bytes;
  Region region;
  region.ledger_ = this;
  region.component_ = std::string(component);
  region.size_ = bytes;
  return region;
}

Region Ledger::Take(std::string_view component, uint64_t bytes) {
  Region region = Reserve(component, bytes);
  if (bytes == 0) return region;
  const bool huge = bytes >= kHugePageBytes;
  const uint64_t mapped = MappedBytes(bytes);
  void* start = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED)
    CheckFailed(__FILE__, __LINE__,
                absl::StrCat("ledger: the system refused ", bytes, " B for ", std::string(component)));
  std::byte* data = static_cast<std::byte*>(start);
  if (huge) {
    // Keep exactly the aligned part mapped, so that a release needs no more than data and size.
    const uint64_t keep = RoundUp(bytes, kHugePageBytes);
    const uint64_t head =
        RoundUp(reinterpret_cast<uintptr_t>(data), kHugePageBytes) - reinterpret_cast<uintptr_t>(data);
    if (head > 0) munmap(data, head);
    if (mapped - head - keep > 0) munmap(data + head + keep, mapped - head - keep);
    data += head;
    madvise(data, keep, MADV_HUGEPAGE);  // advice: without it the memory is the same, slower
  }
  region.data_ = data;
  return region;
}

Region Ledger::Account(std::string_view component, uint64_t bytes) { return Reserve(component, bytes); }

bool Ledger::Fits(uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  return bytes <= limit_bytes_ - taken_bytes_;
}

uint64_t Ledger::taken_bytes() const {
  const std::lock_guard lock(mutex_);
  return taken_bytes_;
}

std::map<std::string, uint64_t> Ledger::taken_by_component() const {
  const std::lock_guard lock(mutex_);
  return by_component_;
}

void Ledger::Return(const std::string& component, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  CHECK_LE(bytes, taken_bytes_);
  taken_bytes_ -= bytes;
  by_component_[component] -= bytes;
}

}  // namespace reprise
