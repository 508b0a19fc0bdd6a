#include "attention/attention_plan.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"

namespace reprise {
namespace {

// What a row costs beside its products, in rows: reading K and V. Only the balance depends on it.
constexpr uint64_t kReadCostInRows = 4;

}  // namespace

AttentionPlan::AttentionPlan(uint32_t group_heads, uint32_t kv_heads, uint32_t window, uint32_t threads,
                             std::span<const AttentionSlice> slices, std::span<SliceJobs> jobs)
    : group_heads_(group_heads), kv_heads_(kv_heads), window_(window), threads_(threads), slices_(jobs) {
  CHECK_GE(jobs.size(), slices.size());
  for (const AttentionSlice& slice : slices) {
    if (slice.rows != 0) AddSlice(slice);
  }
  if (threads > 1) Split(threads);
}

void AttentionPlan::AddSlice(const AttentionSlice& slice) {
  SliceJobs& jobs = slices_[slice_count_++];
  jobs = {.slice = &slice};
  jobs.query_rows = slice.rows * group_heads_;
  jobs.jobs = static_cast<uint32_t>(CeilDiv(jobs.query_rows, kTileRows)) * kv_heads_;
  jobs.first_partition = FirstSeen(slice.first_position) / kPartitionTokens;
  jobs.last_partition = (slice.first_position + slice.rows - 1) / kPartitionTokens + 1;
}

// A job is split when it is more than 1 / (threads * kSplitJobsPerThread) of all work: so there are
// fewer split jobs than that many, and no whole one is long enough to leave the other threads idle.
void AttentionPlan::Split(uint32_t threads) {
  const auto cost_of = [](const SliceJobs& jobs) {
    return (RowsPerJob(jobs) + kReadCostInRows) * (jobs.last_partition - jobs.first_partition);
  };
  uint64_t all = 0;
  for (const SliceJobs& jobs : slices_.first(slice_count_)) all += cost_of(jobs) * jobs.jobs;
  for (SliceJobs& jobs : slices_.first(slice_count_)) {
    if (jobs.last_partition - jobs.first_partition < 2) continue;
    if (cost_of(jobs) * threads * kSplitJobsPerThread <= all) continue;
    jobs.split = true;
    jobs.first_shared_row = shared_rows_;
    shared_rows_ += jobs.jobs * RowsPerJob(jobs);
  }
  CHECK_LE(shared_rows_, SharedRowsMax(threads));
}

uint32_t AttentionPlan::LimitWaves(uint64_t wave_partitions) {
  CHECK_GE(wave_partitions, 1u);
  wave_partitions_ = static_cast<uint32_t>(std::min<uint64_t>(wave_partitions, UINT32_MAX));
  uint32_t waves = 1;
  for (const SliceJobs& jobs : slices_.first(slice_count_)) {
    if (!jobs.split) continue;
    const uint32_t partitions = jobs.last_partition - jobs.first_partition;
    waves = std::max(waves, static_cast<uint32_t>(CeilDiv(partitions, wave_partitions_)));
  }
  return waves;
}

uint32_t AttentionPlan::WavePartitions(const SliceJobs& jobs) const {
  const uint64_t before = uint64_t{wave_} * wave_partitions_;
  const uint64_t all = jobs.last_partition - jobs.first_partition;
  return before >= all ? 0 : static_cast<uint32_t>(std::min<uint64_t>(all - before, wave_partitions_));
}

uint32_t AttentionPlan::StartWave(uint32_t wave) {
  wave_ = wave;
  uint64_t split_partitions = 0;
  for (const SliceJobs& jobs : slices_.first(slice_count_)) {
    if (jobs.split) split_partitions += uint64_t{jobs.jobs} * WavePartitions(jobs);
  }
  // Pieces small enough to share evenly, and of several partitions where there are many, since
  // prefetching reaches no further than a piece.
  chunk_ = static_cast<uint32_t>(std::max<uint64_t>(1, split_partitions / (threads_ * kSplitJobsPerThread)));
  uint32_t pieces = 0;
  for (const bool split : {true, false}) {  // the long jobs first
    for (SliceJobs& jobs : slices_.first(slice_count_)) {
      if (jobs.split != split) continue;
      jobs.first_piece = pieces;
      if (split) {
        pieces += jobs.jobs * static_cast<uint32_t>(CeilDiv(WavePartitions(jobs), chunk_));
      } else if (wave == 0) {
        pieces += jobs.jobs;
      }
    }
  }
  return pieces;
}

Job AttentionPlan::PieceOf(uint32_t piece) const {
  for (const SliceJobs& jobs : slices_.first(slice_count_)) {
    const auto chunks = jobs.split ? static_cast<uint32_t>(CeilDiv(WavePartitions(jobs), chunk_)) : 1u;
    if (piece < jobs.first_piece || piece - jobs.first_piece >= jobs.jobs * chunks) continue;
    if (!jobs.split) return JobOf(jobs, piece - jobs.first_piece);
    Job job = JobOf(jobs, (piece - jobs.first_piece) / chunks);
    ClipToWave(jobs, job);
    const uint32_t start = job.wave_start + (piece - jobs.first_piece) % chunks * chunk_;
    job.first_partition = std::max(job.first_partition, start);
    job.last_partition = std::min(job.last_partition, start + chunk_);
    return job;
  }
  CheckFailed(__FILE__, __LINE__, "a piece of no slice");
}

Job AttentionPlan::SharedRow(uint32_t shared_row, uint32_t& row_in_job) const {
  for (const SliceJobs& jobs : slices_.first(slice_count_)) {
    if (!jobs.split || shared_row < jobs.first_shared_row) continue;
    const uint32_t index = (shared_row - jobs.first_shared_row) / RowsPerJob(jobs);
    if (index >= jobs.jobs) continue;
    row_in_job = (shared_row - jobs.first_shared_row) % RowsPerJob(jobs);
    Job job = JobOf(jobs, index);
    ClipToWave(jobs, job);
    return job;
  }
  CheckFailed(__FILE__, __LINE__, "a shared row of no slice");
}

// The last tile first: it reaches furthest. Neighbours in number are heads of one tile.
Job AttentionPlan::JobOf(const SliceJobs& jobs, uint32_t index) const {
  const uint32_t tile = jobs.jobs / kv_heads_ - 1 - index / kv_heads_;
  Job job{.slice = jobs.slice, .kv_head = index % kv_heads_, .split = jobs.split};
  job.first_row = tile * kTileRows;
  job.rows = std::min(kTileRows, jobs.query_rows - job.first_row);
  job.first_partition = FirstSeen(PositionOf(job, 0)) / kPartitionTokens;
  job.last_partition = PositionOf(job, job.rows - 1) / kPartitionTokens + 1;
  job.shared_row = jobs.first_shared_row + index * RowsPerJob(jobs);
  return job;
}

void AttentionPlan::ClipToWave(const SliceJobs& jobs, Job& job) const {
  job.wave_start = jobs.first_partition + wave_ * wave_partitions_;
  job.first_partition = std::max(job.first_partition, job.wave_start);
  job.last_partition = std::min(job.last_partition, job.wave_start + WavePartitions(jobs));
}

}  // namespace reprise
