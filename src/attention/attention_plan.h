// How one call of Attend is cut into pieces for the worker pool.
//
// A job is one kv head and one tile of up to kTileRows query rows (queries x heads of the group) of a
// slice. Most jobs are one piece: its worker walks over the partitions and merges as it goes. A job
// that is a large share of the call, such as a lone decode at a long context, is split: its partitions
// are computed by many pieces into shared memory and merged left to right in a second round. Where the
// shared memory is too small for that, it is done in waves. All ways give the same bits.
//
// Ownership: a plan is a view of scratch. Threads: made by one, read by all.
// Errors:    none.
#pragma once

#include <cstdint>
#include <span>

#include "attention/attention.h"
#include "attention/attention_kernel.h"

namespace reprise {

inline constexpr uint32_t kSplitJobsPerThread = 8;
// Query rows of split jobs in one call, at most.
constexpr uint32_t SharedRowsMax(uint32_t threads) { return threads * kSplitJobsPerThread * kTileRows; }

// The jobs of one slice.
struct SliceJobs {
  const AttentionSlice* slice = nullptr;
  uint32_t query_rows = 0;       // per kv head
  uint32_t jobs = 0;             // tiles * kv heads
  uint32_t first_partition = 0;  // that some row sees
  uint32_t last_partition = 0;   // one past it
  bool split = false;
  uint32_t first_shared_row = 0;  // split: in shared memory
  uint32_t first_piece = 0;       // in this wave
};

// One job, or the partitions of it that a piece computes.
struct Job {
  const AttentionSlice* slice = nullptr;
  uint32_t kv_head = 0;
  uint32_t first_row = 0, rows = 0;                  // of the slice's query rows
  uint32_t first_partition = 0, last_partition = 0;  // [first, last), maybe none
  bool split = false;
  uint32_t shared_row = 0;  // split: of the first row, in shared memory
  uint32_t wave_start = 0;  // split: the partition that comes first in shared memory
};

class AttentionPlan {
 public:
  // REQUIRES: jobs.size() >= slices.size().
  AttentionPlan(uint32_t group_heads, uint32_t kv_heads, uint32_t window, uint32_t threads,
                std::span<const AttentionSlice> slices, std::span<SliceJobs> jobs);

  // Rows that split jobs need in shared memory; 0: nothing is split.
  uint32_t shared_rows() const { return shared_rows_; }
  // Sets how many partitions of a split job one wave computes. Returns the number of waves.
  uint32_t LimitWaves(uint64_t wave_partitions);
  // Sets up a wave and returns its number of pieces. Whole jobs are in wave 0.
  uint32_t StartWave(uint32_t wave);
  Job PieceOf(uint32_t piece) const;
  // The job of a row in shared memory, with the partitions of this wave; `row_in_job` may be one that
  // the job does not have.
  Job SharedRow(uint32_t shared_row, uint32_t& row_in_job) const;

  // Of query row `row` of a job.
  uint32_t PositionOf(const Job& job, uint32_t row) const {
    return job.slice->first_position + (job.first_row + row) / group_heads_;
  }
  uint32_t RowOf(const Job& job, uint32_t row) const {  // in q and out
    return job.slice->first_row + (job.first_row + row) / group_heads_;
  }
  uint32_t HeadOf(const Job& job, uint32_t row) const {  // query head
    return job.kv_head * group_heads_ + (job.first_row + row) % group_heads_;
  }
  // The first position that a query at `position` sees.
  uint32_t FirstSeen(uint32_t position) const {
    return window_ != 0 && position >= window_ ? position + 1 - window_ : 0;
  }

 private:
  void AddSlice(const AttentionSlice& slice);
  void Split(uint32_t threads);
  Job JobOf(const SliceJobs& jobs, uint32_t index) const;
  void ClipToWave(const SliceJobs& jobs, Job& job) const;
  uint32_t WavePartitions(const SliceJobs& jobs) const;  // of this wave
  static uint32_t RowsPerJob(const SliceJobs& jobs) {
    return jobs.query_rows < kTileRows ? jobs.query_rows : kTileRows;
  }

  const uint32_t group_heads_;
  const uint32_t kv_heads_;
  const uint32_t window_;
  const uint32_t threads_;
  std::span<SliceJobs> slices_;  // of the slices that have rows
  uint32_t slice_count_ = 0;
  uint32_t shared_rows_ = 0;
  uint32_t wave_partitions_ = 1;
  uint32_t wave_ = 0;
  uint32_t chunk_ = 1;  // partitions of a split job in one piece
};

}  // namespace reprise
