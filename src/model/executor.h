// The seam between scheduling and arithmetic: whatever computes a batch (the CPU forward pass, a fake
// in tests, later a device) is an Executor.
//
// Ownership: an executor reads weights it owns and reads and writes K and V in slots it does not own.
// Threads:   one thread calls Run; others may read the constants.
// Errors:    Run fails only for what no input could avoid (a device that went away); NaN in logits is
//            a value, judged by the caller.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "base/geometry.h"
#include "base/hash.h"
#include "model/batch.h"

namespace reprise {

// A LoRA adapter that slices may use.
struct AdapterInfo {
  std::string name;    // unique among the executor's
  Digest content;      // of its tensors and alpha
  float scale = 1.0f;  // where a request does not say
  uint32_t rank = 0;   // the largest
  uint64_t bytes = 0;  // in memory
};

class Executor {
 public:
  virtual ~Executor() = default;

  virtual const Geometry& geometry() const = 0;
  virtual uint32_t vocab_size() const = 0;
  virtual uint32_t context_max() const = 0;      // positions that may be computed
  virtual uint32_t batch_rows_max() const = 0;   // tokens of one batch, all slices together
  virtual uint32_t logits_rows_max() const = 0;  // rows of logits of one batch
  virtual uint32_t slices_max() const = 0;       // sequences of one batch
  // What AdapterUse::adapter counts; constant.
  virtual std::span<const AdapterInfo> adapters() const { return {}; }

  // Computes the batch: writes K and V of its tokens to their slots and returns the wanted logits,
  // [rows][vocab_size] in slice order, valid until the next call. Does not allocate.
  // REQUIRES: the batch is not empty and within the limits above; every token < vocab_size and every
  // adapter < adapters().size().
  virtual absl::StatusOr<std::span<const float>> Run(const Batch& batch) = 0;

  // [slices of the last Run]: 1 where everything computed for that slice was finite, logits or not. A
  // slice with a NaN or Inf may not be sealed (DESIGN 10).
  virtual std::span<const uint8_t> finite() const = 0;
};

}  // namespace reprise
