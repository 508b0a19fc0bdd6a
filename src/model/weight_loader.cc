#include "model/weight_loader.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "kernel/matmul.h"
#include "model/identity.h"
#include "model/status_macros.h"

namespace reprise {
namespace {

constexpr uint32_t kPackedRows = 16;  // of one group; chunks begin at a multiple of it

uint64_t ChunkBytesMax(std::span<const TensorSource> tensors) {
  uint64_t most = 0;
  for (const TensorSource& tensor : tensors)
    most = std::max(most, tensor.bytes / tensor.rows * std::min(tensor.rows, ChunkRows(tensor)));
  return RoundUp(most, 64);
}

// Reads, hashes and packs chunks of tensors, a wave of them at a time.
class WeightLoader {
 public:
  WeightLoader(std::span<const TensorSource> tensors, const ModelFile& file, WorkerPool& pool, Ledger& ledger,
               std::span<const std::span<std::byte>> packed, std::span<const std::span<float>> vectors)
      : tensors_(tensors),
        file_(file),
        pool_(pool),
        packed_(packed),
        vectors_(vectors),
        chunk_bytes_(ChunkBytesMax(tensors)),
        staging_(ledger.Take("weights staging", LoadStagingBytes(tensors, pool.threads()))),
        hashers_(pool.threads()),
        errors_(pool.threads()) {
    for (uint32_t t = 0; t < tensors.size(); ++t)
      for (uint32_t row = 0; row < tensors[t].rows; row += ChunkRows(tensors[t])) chunks_.push_back({t, row});
    digests_.resize(chunks_.size());
  }

  absl::Status Run(const LoadProgress& progress) {
    constexpr size_t kProgressSteps = 100;
    const size_t wave = std::max<size_t>(chunks_.size() / kProgressSteps, pool_.threads() * 4);
    for (size_t done = 0; done < chunks_.size(); done += wave) {
      const size_t count = std::min(wave, chunks_.size() - done);
      pool_.Run(static_cast<uint32_t>(count), [&](uint32_t piece, uint32_t worker) {
        if (errors_[worker].ok()) errors_[worker] = LoadChunk(done + piece, worker);
      });
      for (const absl::Status& error : errors_) RETURN_IF_ERROR(error);
      if (progress) progress(static_cast<double>(done + count) / static_cast<double>(chunks_.size()));
    }
    return absl::OkStatus();
  }

  std::vector<Digest> TensorDigests() {
    std::vector<Digest> out(tensors_.size());
    Sha256& sha = hashers_[0];
    for (size_t i = 0; i < chunks_.size(); ++i) {
      sha.Update(std::as_bytes(std::span(digests_[i].bytes)));
      if (i + 1 == chunks_.size() || chunks_[i + 1].tensor != chunks_[i].tensor) out[chunks_[i].tensor] = sha.Finish();
    }
    return out;
  }

 private:
  struct Chunk {
    uint32_t tensor;
    uint32_t first_row;
  };

  absl::Status LoadChunk(size_t index, uint32_t worker) {
    const Chunk& chunk = chunks_[index];
    const TensorSource& tensor = tensors_[chunk.tensor];
    const uint32_t rows = std::min(ChunkRows(tensor), tensor.rows - chunk.first_row);
    const uint64_t row_bytes = tensor.bytes / tensor.rows;
    const std::span<std::byte> bytes = staging_.bytes().subspan(worker * chunk_bytes_, rows * row_bytes);
    RETURN_IF_ERROR(file_.Read(tensor.offset + chunk.first_row * row_bytes, bytes));
    hashers_[worker].Update(bytes);
    digests_[index] = hashers_[worker].Finish();
    if (!tensor.matrix) {
      if (!vectors_[chunk.tensor].empty()) DequantizeRow(tensor.type, bytes.data(), vectors_[chunk.tensor]);
      return absl::OkStatus();
    }
    const PackedWeight weight{tensor.type, tensor.rows, tensor.cols, packed_[chunk.tensor].data()};
    PackGroups(weight, bytes.data(), chunk.first_row / kPackedRows,
               static_cast<uint32_t>(CeilDiv(chunk.first_row + rows, kPackedRows)));
    return absl::OkStatus();
  }

  const std::span<const TensorSource> tensors_;
  const ModelFile& file_;
  WorkerPool& pool_;
  const std::span<const std::span<std::byte>> packed_;
  const std::span<const std::span<float>> vectors_;
  const uint64_t chunk_bytes_;
  Region staging_;
  std::vector<Chunk> chunks_;
  std::vector<Digest> digests_;       // [chunks]
  std::vector<Sha256> hashers_;       // [threads]
  std::vector<absl::Status> errors_;  // [threads]
};

}  // namespace

uint64_t LoadStagingBytes(std::span<const TensorSource> tensors, uint32_t threads) {
  return threads * ChunkBytesMax(tensors);
}

absl::StatusOr<std::vector<Digest>> LoadTensors(std::span<const TensorSource> tensors, const ModelFile& file,
                                                WorkerPool& pool, Ledger& ledger,
                                                std::span<const std::span<std::byte>> packed,
                                                std::span<const std::span<float>> vectors,
                                                const LoadProgress& progress) {
  WeightLoader loader(tensors, file, pool, ledger, packed, vectors);
  RETURN_IF_ERROR(loader.Run(progress));
  return loader.TensorDigests();
}

}  // namespace reprise
