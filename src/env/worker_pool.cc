#include "env/worker_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <climits>
#include <thread>
#include <vector>

#include "base/check.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace reprise {
namespace {

// How long a thread spins before it sleeps: longer than the gap between two parallel regions of a
// forward pass, shorter than what a neighbour would notice.
constexpr std::chrono::microseconds kSpin{50};
constexpr int kPausesPerClockRead = 32;
constexpr uint32_t kThreadsMax = 256;

void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free);

// Sleeps while `word` is `seen`. Wakes on FutexWake, and sometimes for no reason.
void FutexWait(std::atomic<uint32_t>& word, uint32_t seen) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}
void FutexWake(std::atomic<uint32_t>& word, uint32_t threads) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, std::min<uint32_t>(threads, INT_MAX), nullptr, nullptr, 0);
}

// Polls `done` for kSpin; true as soon as it holds.
template <class Condition>
bool Spin(Condition done) {
  if (done()) return true;
  const auto until = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < kPausesPerClockRead; ++i) {
      if (done()) return true;
      CpuRelax();
    }
  } while (std::chrono::steady_clock::now() < until);
  return done();
}

// Rounding and denormals are part of our results (DESIGN 9): nobody may have changed them.
void CheckFloatControlWord() {
#if defined(__SSE__)
  constexpr unsigned kStatusFlags = 0x3f;
  CHECK_EQ(_mm_getcsr() & ~kStatusFlags, 0x1f80u);
#else
  CHECK_EQ(std::fegetround(), FE_TONEAREST);
#endif
}

std::vector<int> AvailableCores() {
  std::vector<int> cores;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cores;  // no pinning, then
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

}  // namespace

// A piece is claimed by one compare-and-swap on `claim`, which holds the run's number beside the count
// of pieces left: it is (run, 0) from the last claim to the next run. So a worker that wakes late, or
// stops between reading the job and claiming, fails to claim: success means that the job it read is
// the one of this run, and that Run waits for this piece.
struct WorkerPool::State {
  alignas(64) std::atomic<uint64_t> claim{0};  // run << 32 | pieces left
  // The job of the run in `claim`; atomics because a late worker may read them while the next one is
  // written, and then fails to claim.
  std::atomic<uint32_t> pieces{0};
  std::atomic<Piece> piece{nullptr};
  std::atomic<void*> body{nullptr};

  alignas(64) std::atomic<uint32_t> done{0};  // pieces of this run that are finished
  std::atomic<uint32_t> caller_sleeps{0};

  alignas(64) std::atomic<uint32_t> run{0};  // what idle workers sleep on
  std::atomic<uint32_t> sleepers{0};
  std::atomic<bool> stop{false};

  uint32_t thread_count = 1;
  std::vector<std::thread> workers;

  void Work(uint32_t worker);
  void WorkerLoop(uint32_t worker);
  void WaitForRun(uint32_t seen);
  void WaitUntilDone(uint32_t count);
};

// Claims and runs pieces until the current run has none left.
void WorkerPool::State::Work(uint32_t worker) {
  for (;;) {
    uint64_t at = claim.load(std::memory_order_acquire);
    const uint32_t count = pieces.load(std::memory_order_relaxed);
    const Piece function = piece.load(std::memory_order_relaxed);
    void* const argument = body.load(std::memory_order_relaxed);
    const auto left = static_cast<uint32_t>(at);
    if (left == 0) return;
    if (!claim.compare_exchange_weak(at, at - 1, std::memory_order_acq_rel, std::memory_order_relaxed)) continue;
    function(argument, count - left, worker);
    // Sequentially consistent with caller_sleeps: either we see it, or the caller sees our piece done.
    if (done.fetch_add(1, std::memory_order_seq_cst) + 1 == count &&
        caller_sleeps.load(std::memory_order_seq_cst) != 0) {
      FutexWake(done, 1);
    }
  }
}

void WorkerPool::State::WaitForRun(uint32_t seen) {
  if (Spin([&] { return run.load(std::memory_order_acquire) != seen; })) return;
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  while (run.load(std::memory_order_seq_cst) == seen) FutexWait(run, seen);
  sleepers.fetch_sub(1, std::memory_order_relaxed);
}

void WorkerPool::State::WaitUntilDone(uint32_t count) {
  if (Spin([&] { return done.load(std::memory_order_acquire) == count; })) return;
  caller_sleeps.store(1, std::memory_order_seq_cst);
  for (;;) {
    const uint32_t seen = done.load(std::memory_order_seq_cst);
    if (seen == count) break;
    FutexWait(done, seen);
  }
  caller_sleeps.store(0, std::memory_order_relaxed);
}

void WorkerPool::State::WorkerLoop(uint32_t worker) {
  std::fesetenv(FE_DFL_ENV);  // a new thread inherits its maker's
  uint32_t seen = 0;
  for (;;) {
    WaitForRun(seen);
    seen = run.load(std::memory_order_acquire);
    if (stop.load(std::memory_order_relaxed)) return;
    Work(worker);
  }
}

WorkerPool::WorkerPool(uint32_t threads) : state_(std::make_unique<State>()) {
  CHECK_GE(threads, 1u);
  CHECK_LE(threads, kThreadsMax);
  State& state = *state_;
  state.thread_count = threads;
  const std::vector<int> cores = AvailableCores();
  for (uint32_t worker = 1; worker < threads; ++worker) {
    state.workers.emplace_back([&state, worker] { state.WorkerLoop(worker); });
    if (threads > cores.size()) continue;
    // Pinned workers wake in 0.11 ms at most; unpinned ones were woken on the busy core now and then
    // and lost milliseconds. The caller is not ours to pin; the first core is left to it.
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cores[worker], &set);
    pthread_setaffinity_np(state.workers.back().native_handle(), sizeof(set), &set);  // a failure costs time only
  }
}

WorkerPool::~WorkerPool() {
  State& state = *state_;
  state.stop.store(true, std::memory_order_relaxed);
  state.run.fetch_add(1, std::memory_order_seq_cst);
  FutexWake(state.run, kThreadsMax);
  for (std::thread& worker : state.workers) worker.join();
}

uint32_t WorkerPool::threads() const { return state_->thread_count; }

void WorkerPool::RunErased(uint32_t pieces, Piece piece, void* body) {
  CheckFloatControlWord();
  State& state = *state_;
  if (pieces <= 1 || state.thread_count == 1) {
    for (uint32_t i = 0; i < pieces; ++i) piece(body, i, 0);
    return;
  }
  // Nobody can claim while this is written: no piece of the last run is left.
  const uint64_t number = (state.claim.load(std::memory_order_relaxed) >> 32) + 1;
  state.done.store(0, std::memory_order_relaxed);
  state.piece.store(piece, std::memory_order_relaxed);
  state.body.store(body, std::memory_order_relaxed);
  state.pieces.store(pieces, std::memory_order_relaxed);
  state.claim.store(number << 32 | pieces, std::memory_order_release);
  // Sequentially consistent with sleepers: either we see a sleeper, or it sees the new run.
  state.run.store(static_cast<uint32_t>(number), std::memory_order_seq_cst);
  const uint32_t asleep = state.sleepers.load(std::memory_order_seq_cst);
  if (asleep != 0) FutexWake(state.run, std::min(asleep, pieces - 1));
  state.Work(0);
  state.WaitUntilDone(pieces);
}

}  // namespace reprise
