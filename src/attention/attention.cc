#include "attention/attention.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "attention/attention_kernel.h"
#include "attention/attention_plan.h"
#include "attention/attention_table.h"
#include "base/bytes.h"
#include "base/carver.h"
#include "base/check.h"
#include "base/ledger.h"
#include "kernel/run_pieces.h"

namespace reprise {
namespace {

constexpr double kLog2E = 0x1.71547652b82fep+0;
constexpr uint32_t kDimMax = 256;
// Partitions of SharedRowsMax rows that shared memory holds; fewer rows have room for more.
constexpr uint32_t kSharedPartitions = 8;

// What one worker needs.
struct WorkerScratch {
  std::span<float> q;        // [dim][kTileRows]
  std::span<float> scores;   // [kTileRows][kPartitionTokens]
  std::span<float> partial;  // [kTileRows][ResultStride]: of one partition
  std::span<float> running;  // [kTileRows][ResultStride]: of all partitions so far

  WorkerScratch(uint32_t dim, Carver& carver)
      : q(carver.Array<float>(dim * kTileRows)),
        scores(carver.Array<float>(kTileRows * kPartitionTokens)),
        partial(carver.Array<float>(kTileRows * ResultStride(dim))),
        running(carver.Array<float>(kTileRows * ResultStride(dim))) {}
  static uint64_t Bytes(uint32_t dim) { return Measure<WorkerScratch>(dim); }
};

struct Scratch {
  std::span<SliceJobs> slices;
  std::span<std::byte> workers;  // [threads][WorkerScratch::Bytes]
  std::span<float> states;       // [SharedRowsMax][ResultStride]: of split jobs, all waves so far
  std::span<float> shared;       // [partitions of a wave][shared rows][ResultStride]

  Scratch(uint32_t dim, uint32_t slices_max, uint32_t threads, uint64_t shared_results, Carver& carver)
      : slices(carver.Array<SliceJobs>(slices_max)),
        workers(carver.Array<std::byte>(threads * WorkerScratch::Bytes(dim))),
        states(carver.Array<float>(threads > 1 ? SharedRowsMax(threads) * ResultStride(dim) : 0)),
        shared(carver.Array<float>(threads > 1 ? shared_results * ResultStride(dim) : 0)) {}
};

// One call of Attend.
struct Call {
  const Compute& compute;
  const AttentionTable& table;
  const AttentionShape& shape;
  const KvLayerView& kv;
  const float* q;
  const uint32_t q_stride;
  float* out;
  const uint32_t out_stride;
  AttentionPlan& plan;
  const Scratch& scratch;
  const float scale = static_cast<float>(shape.scale * kLog2E);
  const uint32_t dim = kv.key_dim;
  const uint32_t stride = ResultStride(kv.key_dim);

  void Run();
  void RunPiece(const Job& job, const Job& likely_next, const WorkerScratch& worker) const;
  void LoadQueries(const Job& job, const WorkerScratch& worker, TileTask& task) const;
  void PointAt(const Job& job, uint32_t partition, TileTask& task) const;
  void HintAt(const Job& job, uint32_t partition, TileTask& task) const;
  void RunPartition(const TileTask& task) const;
  void Take(const Job& job, uint32_t row, uint32_t partition, const float* partial, float* state) const;
  void MergeSharedRow(uint32_t shared_row) const;
  float* Shared(const Job& job, uint32_t partition, uint32_t row) const {
    const uint64_t at = uint64_t{partition - job.wave_start} * plan.shared_rows() + job.shared_row + row;
    return scratch.shared.data() + at * stride;
  }
};

void Call::Run() {
  const uint32_t shared_rows = plan.shared_rows();
  const uint64_t room = shared_rows == 0 ? 1 : scratch.shared.size() / stride / shared_rows;
  const uint32_t waves = plan.LimitWaves(room);
  for (uint32_t wave = 0; wave < waves; ++wave) {
    const uint32_t pieces = plan.StartWave(wave);
    RunPieces(compute, pieces, [&](uint32_t piece, uint32_t worker) {
      const uint64_t bytes = WorkerScratch::Bytes(dim);
      Carver carver(scratch.workers.subspan(worker * bytes, bytes));
      // The others claim theirs meanwhile.
      const uint32_t likely_next = std::min(piece + Threads(compute), pieces - 1);
      RunPiece(plan.PieceOf(piece), plan.PieceOf(likely_next), WorkerScratch(dim, carver));
    });
    RunPieces(compute, shared_rows, [&](uint32_t row, uint32_t) { MergeSharedRow(row); });
  }
}

void Call::RunPiece(const Job& job, const Job& likely_next, const WorkerScratch& worker) const {
  if (job.first_partition >= job.last_partition) return;
  TileTask task;
  LoadQueries(job, worker, task);
  for (uint32_t p = job.first_partition; p < job.last_partition; ++p) {
    task.results = job.split ? Shared(job, p, 0) : worker.partial.data();
    PointAt(job, p, task);
    if (p + 1 < job.last_partition) {
      HintAt(job, p + 1, task);
    } else {
      HintAt(likely_next, likely_next.first_partition, task);
    }
    RunPartition(task);
    if (job.split) continue;
    for (uint32_t r = 0; r < job.rows; ++r) {
      Take(job, r, p, worker.partial.data() + r * stride, worker.running.data() + r * stride);
    }
  }
}

// Queries of the tile, transposed and scaled once.
void Call::LoadQueries(const Job& job, const WorkerScratch& worker, TileTask& task) const {
  task.q_stride = static_cast<uint32_t>(RoundUp(job.rows, 4));
  for (uint32_t r = 0; r < job.rows; ++r) {
    const float* head = q + uint64_t{plan.RowOf(job, r)} * q_stride + plan.HeadOf(job, r) * dim;
    for (uint32_t d = 0; d < dim; ++d) worker.q[d * task.q_stride + r] = head[d] * scale;
  }
  task.rows = job.rows;
  task.dim = dim;
  task.block_tokens = kv.block_tokens;
  task.soft_cap = static_cast<float>(shape.soft_cap * kLog2E);
  task.q = worker.q.data();
  task.scores = worker.scores.data();
}

// Which tokens of the partition the rows see, and where its blocks are.
void Call::PointAt(const Job& job, uint32_t partition, TileTask& task) const {
  const uint32_t start = partition * kPartitionTokens;
  const auto in_partition = [start](uint32_t position) {
    return std::min(position > start ? position - start : 0, kPartitionTokens);
  };
  for (uint32_t r = 0; r < job.rows; ++r) {
    const uint32_t position = plan.PositionOf(job, r);
    task.row_first[r] = in_partition(plan.FirstSeen(position));
    task.row_last[r] = in_partition(position + 1);
  }
  task.first_token = task.row_first[0];
  task.last_token = task.row_last[job.rows - 1];
  const uint64_t key_at = uint64_t{job.kv_head} * dim * kv.block_tokens * ElementBytes(kv.key_type);
  const uint64_t value_at = uint64_t{job.kv_head} * dim * kv.block_tokens * ElementBytes(kv.value_type);
  const uint32_t blocks = kPartitionTokens / kv.block_tokens;
  const uint32_t first_block = partition * blocks;
  for (uint32_t b = task.first_token / kv.block_tokens; b * kv.block_tokens < task.last_token; ++b) {
    CHECK_LT(first_block + b, job.slice->table.size());
    const SlotId slot = job.slice->table[first_block + b];
    CHECK_NE(slot, kNoSlot);
    task.key[b] = kv.Key(slot) + key_at;
    task.value[b] = kv.Value(slot) + value_at;
  }
}

// K of what this worker computes next, most likely.
void Call::HintAt(const Job& job, uint32_t partition, TileTask& task) const {
  const uint64_t key_at = uint64_t{job.kv_head} * dim * kv.block_tokens * ElementBytes(kv.key_type);
  const uint32_t blocks = kPartitionTokens / kv.block_tokens;
  for (uint32_t b = 0; b < blocks; ++b) {
    const uint64_t at = uint64_t{partition} * blocks + b;
    const SlotId slot = at < job.slice->table.size() ? job.slice->table[at] : kNoSlot;
    task.next_key[b] = slot == kNoSlot ? nullptr : kv.Key(slot) + key_at;
  }
}

void Call::RunPartition(const TileTask& task) const {
  table.scores[static_cast<size_t>(kv.key_type)](task);
  table.softmax(task);
  table.values[static_cast<size_t>(kv.value_type)](task);
}

// Takes the result of a partition into the row's state, left to right: partitions that the row does not
// see are skipped, its first is copied, at its last the row is finished.
void Call::Take(const Job& job, uint32_t row, uint32_t partition, const float* partial, float* state) const {
  const uint32_t position = plan.PositionOf(job, row);
  const uint32_t first = plan.FirstSeen(position) / kPartitionTokens;
  const uint32_t last = position / kPartitionTokens;
  if (partition < first || partition > last) return;
  if (partition == first) {
    std::memcpy(state, partial, stride * sizeof(float));
  } else {
    table.merge(state, partial, dim);
  }
  if (partition == last) {
    table.finish(state, out + uint64_t{plan.RowOf(job, row)} * out_stride + plan.HeadOf(job, row) * dim, dim);
  }
}

void Call::MergeSharedRow(uint32_t shared_row) const {
  uint32_t row = 0;
  const Job job = plan.SharedRow(shared_row, row);
  if (row >= job.rows) return;
  float* state = scratch.states.data() + uint64_t{shared_row} * stride;
  for (uint32_t p = job.first_partition; p < job.last_partition; ++p) Take(job, row, p, Shared(job, p, row), state);
}

}  // namespace

absl::Status AttentionSupported(const AttentionShape& shape, const KvLayerView& kv) {
  const auto refuse = [](auto&&... parts) { return absl::UnimplementedError(absl::StrCat("attention: ", parts...)); };
  if (kv.key_dim != kv.value_dim)
    return refuse("key dimension ", kv.key_dim, " and value dimension ", kv.value_dim, ": they must be equal");
  if (kv.key_dim == 0 || kv.key_dim % 16 != 0 || kv.key_dim > kDimMax)
    return refuse("head dimension ", kv.key_dim, ": multiples of 16 up to ", kDimMax, " are supported");
  if (kv.block_tokens != 16 && kv.block_tokens != 32 && kv.block_tokens != 64)
    return refuse("blocks of ", kv.block_tokens, " tokens: 16, 32 and 64 are supported");
  if (kv.kv_heads == 0 || shape.query_heads == 0 || shape.query_heads % kv.kv_heads != 0)
    return refuse(shape.query_heads, " query heads over ", kv.kv_heads, " kv heads: the first must be a multiple");
  for (const ElementType type : {kv.key_type, kv.value_type}) {
    if (type != ElementType::kF32 && type != ElementType::kF16 && type != ElementType::kBf16)
      return refuse("element type ", static_cast<uint32_t>(type), ": f32, f16 and bf16 are supported");
  }
  if (!(shape.soft_cap >= 0.0f)) return refuse("soft cap ", shape.soft_cap, ": 0 (off) and positive are supported");
  return absl::OkStatus();
}

uint64_t AttendScratchBytes(const AttentionShape&, uint32_t key_dim, uint32_t value_dim, uint32_t rows_max,
                            uint32_t positions_max, uint32_t threads) {
  CHECK_EQ(key_dim, value_dim);
  const uint64_t partitions = std::min<uint64_t>(kSharedPartitions, CeilDiv(positions_max, kPartitionTokens));
  return Measure<Scratch>(key_dim, rows_max, threads, partitions * SharedRowsMax(threads));
}

void Attend(const Compute& compute, const AttentionShape& shape, const KvLayerView& kv,
            std::span<const AttentionSlice> slices, const float* q, uint32_t q_stride, float* out, uint32_t out_stride,
            std::span<std::byte> scratch) {
  if (slices.empty()) return;
  const uint32_t threads = Threads(compute);
  const auto slice_count = static_cast<uint32_t>(slices.size());
  // What is left after the fixed part is room for results of split jobs.
  const uint64_t fixed = Measure<Scratch>(kv.key_dim, slice_count, threads, uint64_t{0});
  CHECK_LE(fixed, scratch.size());
  const uint64_t left = (scratch.size() - fixed) / 64 * 64 / (ResultStride(kv.key_dim) * sizeof(float));
  Carver carver(scratch);
  const Scratch layout(kv.key_dim, slice_count, threads, left, carver);
  AttentionPlan plan(shape.query_heads / kv.kv_heads, kv.kv_heads, shape.window, threads, slices, layout.slices);
  Call call{compute, TableOf(compute.isa), shape, kv, q, q_stride, out, out_stride, plan, layout};
  call.Run();
}

}  // namespace reprise
