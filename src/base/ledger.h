// One account of memory: components take what they planned from the one Ledger in their constructor, and nothing
// afterwards (DESIGN 1.3; base/carver.h is how a component plans).
//
// Ownership: a Region owns its bytes and gives them back to the Ledger, which must outlive it.
// Threads:   Ledger is safe from any thread; a Region belongs to one.
// Errors:    running past the ledger's limit is a planning bug: plans are checked before anything is
//            taken (`Fits`), so Take aborts, naming the component, what it asked and what was left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace reprise {

// One line of a plan.
struct Footprint {
  std::string component;
  uint64_t bytes = 0;
};

class Ledger;

// Zeroed bytes, aligned to 64 (to 2 MiB, with huge pages asked for, from 2 MiB on).
class Region {
 public:
  Region() = default;
  Region(Region&& other) noexcept { *this = std::move(other); }
  Region& operator=(Region&& other) noexcept;
  ~Region() { Release(); }

  std::span<std::byte> bytes() const { return {data_, size_}; }

 private:
  friend class Ledger;
  void Release();

  Ledger* ledger_ = nullptr;
  std::string component_;
  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
};

class Ledger {
 public:
  // `limit_bytes`: what all components together may take (--memory).
  explicit Ledger(uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}
  ~Ledger();

  // REQUIRES: bytes fit below the limit. Maps memory; does not touch it.
  Region Take(std::string_view component, uint64_t bytes);
  // Accounts for memory that a library takes on our behalf (the tokenizer's tables): same limit, same
  // report, no bytes handed out.
  Region Account(std::string_view component, uint64_t bytes);

  bool Fits(uint64_t bytes) const;
  uint64_t limit_bytes() const { return limit_bytes_; }
  uint64_t taken_bytes() const;
  std::map<std::string, uint64_t> taken_by_component() const;

 private:
  friend class Region;
  Region Reserve(std::string_view component, uint64_t bytes);
  void Return(const std::string& component, uint64_t bytes);

  const uint64_t limit_bytes_;
  mutable std::mutex mutex_;
  uint64_t taken_bytes_ = 0;                      // guarded by mutex_
  std::map<std::string, uint64_t> by_component_;  // guarded by mutex_
};

}  // namespace reprise
