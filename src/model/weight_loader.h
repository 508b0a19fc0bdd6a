// Reads tensors from a file, in parallel, packs the matrices and widens the vectors; what is read is hashed on
// the way, so an identity costs no second pass.
//
// Ownership: staging is taken from the ledger and given back; results go to the caller's memory.
// Threads:   one call at a time per pool.
// Errors:    those of ModelFile::Read.
// Design:    docs/format/identity_model.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "base/hash.h"
#include "base/ledger.h"
#include "env/worker_pool.h"
#include "model/description.h"
#include "model/model_file.h"

namespace reprise {

// What LoadTensors takes and gives back.
uint64_t LoadStagingBytes(std::span<const TensorSource> tensors, uint32_t threads);

// Called on the loading thread, with the fraction read so far, at most some hundred times.
using LoadProgress = std::function<void(double fraction)>;

// packed: [tensors], PackedBytes of each matrix to be kept. vectors: [tensors], cols of each vector to be kept;
// either may be empty where there is none. Returns the tensors' digests.
absl::StatusOr<std::vector<Digest>> LoadTensors(std::span<const TensorSource> tensors, const ModelFile& file,
                                                WorkerPool& pool, Ledger& ledger,
                                                std::span<const std::span<std::byte>> packed,
                                                std::span<const std::span<float>> vectors,
                                                const LoadProgress& progress);

}  // namespace reprise
