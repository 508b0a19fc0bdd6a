#include "env/worker_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cfenv>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/allocation_counter.h"

namespace reprise {
namespace {

class WorkerPoolTest : public testing::TestWithParam<uint32_t> {};

TEST_P(WorkerPoolTest, RunsEveryPieceExactlyOnce) {
  WorkerPool pool(GetParam());
  for (uint32_t pieces : {0u, 1u, 2u, 3u, 7u, 64u, 1000u}) {
    std::vector<std::atomic<uint32_t>> runs(pieces);
    pool.Run(pieces, [&](uint32_t piece, uint32_t worker) {
      ASSERT_LT(worker, pool.threads());
      runs[piece].fetch_add(1, std::memory_order_relaxed);
    });
    for (uint32_t i = 0; i < pieces; ++i) EXPECT_EQ(runs[i].load(), 1u) << i << " of " << pieces;
  }
}

// Plain memory: a missing happens-before is a race that TSan reports and a wrong sum besides.
TEST_P(WorkerPoolTest, WhatPiecesWroteIsVisibleAfterRun) {
  WorkerPool pool(GetParam());
  std::vector<uint64_t> values(97, 0);
  const uint32_t runs = 2000;
  for (uint32_t run = 1; run <= runs; ++run) {
    const auto count = static_cast<uint32_t>(1 + run % values.size());
    pool.Run(count, [&](uint32_t piece, uint32_t) { values[piece] += run; });
  }
  uint64_t sum = 0;
  for (uint64_t value : values) sum += value;
  uint64_t expected = 0;
  for (uint64_t run = 1; run <= runs; ++run) expected += run * (1 + run % values.size());
  EXPECT_EQ(sum, expected);
}

TEST_P(WorkerPoolTest, AWorkerRunsOnePieceAtATime) {
  WorkerPool pool(GetParam());
  std::vector<uint64_t> by_worker(pool.threads() * 16, 0);  // plain memory, indexed as scratch would be
  for (int run = 0; run < 500; ++run) pool.Run(13, [&](uint32_t, uint32_t worker) { ++by_worker[worker * 16]; });
  uint64_t sum = 0;
  for (uint64_t value : by_worker) sum += value;
  EXPECT_EQ(sum, 500u * 13u);
}

// The body of each run is gone when Run returns, and its memory is used again by the next one: a
// worker that came late to the old run must not touch it.
TEST_P(WorkerPoolTest, LateWorkersFindNothingToDo) {
  WorkerPool pool(GetParam());
  for (uint32_t run = 0; run < 100'000; ++run) {
    const uint32_t pieces = 2 + run % 3;
    std::atomic<uint32_t> done{0};
    pool.Run(pieces, [&done, run, expected = run](uint32_t, uint32_t) {
      ASSERT_EQ(run, expected);
      done.fetch_add(1, std::memory_order_relaxed);
    });
    ASSERT_EQ(done.load(), pieces);
  }
}

TEST_P(WorkerPoolTest, SleepingWorkersWakeUp) {
  WorkerPool pool(GetParam());
  for (int run = 0; run < 20; ++run) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // twenty times the spin
    std::atomic<uint32_t> workers_seen{0};
    // Each piece waits until every thread has one: only all of them together can finish.
    pool.Run(pool.threads(), [&](uint32_t, uint32_t) {
      workers_seen.fetch_add(1);
      while (workers_seen.load() < pool.threads()) std::this_thread::yield();
    });
    EXPECT_EQ(workers_seen.load(), pool.threads());
  }
}

// A piece that sleeps makes the caller wait longer than it spins.
TEST_P(WorkerPoolTest, TheCallerSleepsUntilTheLastPiece) {
  WorkerPool pool(GetParam());
  for (int run = 0; run < 20; ++run) {
    std::atomic<uint32_t> finished{0};
    pool.Run(pool.threads(), [&](uint32_t piece, uint32_t) {
      if (piece % 2 == 1) std::this_thread::sleep_for(std::chrono::microseconds(300));
      finished.fetch_add(1);
    });
    EXPECT_EQ(finished.load(), pool.threads());
  }
}

TEST_P(WorkerPoolTest, RunAllocatesNothing) {
  WorkerPool pool(GetParam());
  std::atomic<uint64_t> sum{0};
  const uint64_t before = AllocationCount();
  for (int run = 0; run < 100; ++run) pool.Run(64, [&](uint32_t piece, uint32_t) { sum.fetch_add(piece); });
  EXPECT_EQ(AllocationCount(), before);
  EXPECT_EQ(sum.load(), 100u * 64u * 63u / 2u);
}

INSTANTIATE_TEST_SUITE_P(Threads, WorkerPoolTest, testing::Values(1u, 2u, 3u, 4u, 8u));

TEST(WorkerPoolTest, WorkersRoundToNearestWhateverTheirMakerDid) {
  std::fesetround(FE_UPWARD);
  WorkerPool pool(4);
  std::fesetround(FE_TONEAREST);
  std::atomic<uint32_t> arrived{0};
  std::atomic<uint32_t> to_nearest{0};
  pool.Run(4, [&](uint32_t, uint32_t) {
    arrived.fetch_add(1);
    while (arrived.load() < 4) std::this_thread::yield();
    if (std::fegetround() == FE_TONEAREST) to_nearest.fetch_add(1);
  });
  EXPECT_EQ(to_nearest.load(), 4u);
}

TEST(WorkerPoolDeathTest, ACallerWithAnotherRoundingModeAborts) {
  WorkerPool pool(1);
  EXPECT_DEATH(
      {
        std::fesetround(FE_UPWARD);
        pool.Run(1, [](uint32_t, uint32_t) {});
      },
      "CHECK failed");
}

TEST(WorkerPoolDeathTest, ZeroThreadsAbort) { EXPECT_DEATH(WorkerPool(0), "CHECK failed"); }

}  // namespace
}  // namespace reprise
