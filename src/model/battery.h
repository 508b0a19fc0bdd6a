// The start battery: small fixed computations through every kernel that a model uses, held against the results
// recorded for this version of the numerics. A CPU, compiler or floating-point environment that computes
// otherwise is seen before it writes K and V that others would read (DESIGN 4).
//
// Ownership: values. Threads: one call at a time per pool. Errors: none; another result is an outcome.
// Cost:      5 to 15 ms, less than 3 MiB that are given back.
// Design:    docs/format/numerics.md
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "kernel/isa.h"
#include "model/description.h"

namespace reprise {

struct RecordedResult {
  std::string_view check;  // "product/Q4_K"
  std::string_view hex;    // SHA-256 of the bytes of its outputs
};
// For kNumericsVersion, the same for every instruction set. battery_test prints it anew with REPRISE_RECORD=1.
std::span<const RecordedResult> RecordedResults();

struct BatteryReport {
  uint32_t checks = 0;
  std::vector<std::string> different;  // checks whose result is not the recorded one
  // Joins ComputationIdentity::numerics: empty, or "/battery=" and a digest of the different results and of those
  // of ggml, so that state is shared with processes that compute the same, and no others.
  std::string numerics;
};

// The checks of the kernels that this model and its adapters use, in byte order. What types give that run
// through ggml ("ggml/iq4_nl") depends on its build and the CPU: it is not recorded but part of the identity.
std::vector<std::string> ChecksOf(const ModelDescription& model);
// REQUIRES: `check` is one of RecordedResults' or ChecksOf's.
Digest RunCheck(std::string_view check, const Compute& compute);

BatteryReport RunBattery(const ModelDescription& model, const Compute& compute,
                         std::span<const RecordedResult> recorded = RecordedResults());

}  // namespace reprise
