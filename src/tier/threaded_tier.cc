#include "tier/threaded_tier.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "env/pages.h"
#include "env/thread_priority.h"
#include "tier/breaker.h"
#include "tier/record.h"

namespace reprise {
namespace {

using Clock = Tier::Clock;

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

// One piece to read, from Fetch until it was shown or cancelled.
struct ReadOp {
  enum class State : uint8_t { kFree, kQueued, kRunning, kDone, kShowing };
  State state = State::kFree;
  bool abandoned = false;  // cancelled, or too late: nothing of it is shown any more
  TierTicket ticket;
  uint32_t index = 0;
  TierRead read;  // its tokens are those below
  std::array<TokenId, kBlockTokensMax> tokens;
  Clock::time_point deadline;
  uint32_t buffer = UINT32_MAX;
  TierOutcome outcome = TierOutcome::kMissing;
  double service_ms = 0;
};

// A record that waits to be written; its vectors are reserved once.
struct StoreOp {
  NamespaceDigests name_space;
  GroupId group;
  Digest parent;
  uint32_t first_token = 0;
  std::vector<BlockKey> keys;
  std::vector<TokenId> tokens;
  std::vector<uint32_t> buffers;
  std::vector<std::span<const std::byte>> payloads;

  StoreOp() {
    keys.reserve(kRecordBlocksMax);
    tokens.reserve(kRecordBlocksMax * kBlockTokensMax);
    buffers.reserve(kRecordBlocksMax);
    payloads.reserve(kRecordBlocksMax);
  }
};

// What the writing thread does next: a record, or one of the rarer things.
struct WriteOp {
  uint32_t store = UINT32_MAX;
  std::optional<Digest> erase;
  std::function<void(absl::StatusOr<TierErased>)> erased;
  bool flush = false;
};

constexpr uint64_t kStoreOpBytes =
    sizeof(StoreOp) + kRecordBlocksMax * (sizeof(BlockKey) + kBlockTokensMax * sizeof(TokenId) + sizeof(uint32_t) +
                                          sizeof(std::span<const std::byte>));
constexpr auto kMaintainEvery = std::chrono::seconds(1);

uint32_t StoreBuffers(const ThreadedTierOptions& options) {
  return static_cast<uint32_t>(std::max<uint64_t>(1, options.store_bytes / options.slot_bytes_max));
}

TierStats::Breaker StateOf(const Breaker& breaker) { return static_cast<TierStats::Breaker>(breaker.state()); }

class ThreadedTier : public Tier {
 public:
  ThreadedTier(const ThreadedTierOptions& options, std::unique_ptr<TierStore> store, Ledger& ledger)
      : options_(options),
        store_(std::move(store)),
        staging_(ledger.Take(absl::StrCat(std::string(store_->name()), " staging"), StagingBytes(options))),
        queues_(ledger.Account(absl::StrCat(std::string(store_->name()), " queues"), QueueBytes(options))),
        ops_(options.reads_max),
        stores_(options.stores_max),
        fetch_breaker_(options.failures_max, options.open_ms, options.open_ms_max),
        store_breaker_(options.failures_max, options.open_ms, options.open_ms_max) {
    CHECK_GT(options.slot_bytes_max, 0u);
    CHECK_GT(options.read_buffers, 0u);
    for (uint32_t i = options.reads_max; i > 0; --i) free_ops_.push_back(i - 1);
    for (uint32_t i = options.stores_max; i > 0; --i) free_stores_.push_back(i - 1);
    for (uint32_t i = 0; i < options.read_buffers; ++i) free_read_buffers_.push_back(i);
    for (uint32_t i = 0; i < StoreBuffers(options); ++i) free_store_buffers_.push_back(options.read_buffers + i);
    showing_.reserve(options.reads_max);
    // The first fetch is somebody's wait; the first store is nobody's.
    (void)PopulatePages(staging_.bytes().first(options.read_buffers * options.slot_bytes_max));
    for (uint32_t i = 0; i < options.readers; ++i) threads_.emplace_back([this] { ReadLoop(); });
    if (store_->writable()) threads_.emplace_back([this] { WriteLoop(); });
  }

  ~ThreadedTier() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      wake_ = nullptr;
    }
    reads_ready_.notify_all();
    writes_ready_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    for (WriteOp& op : writes_)
      if (op.erased) op.erased(absl::CancelledError("the tier is closed"));
  }

  static uint64_t StagingBytes(const ThreadedTierOptions& options) {
    return (options.read_buffers + uint64_t{StoreBuffers(options)}) * options.slot_bytes_max;
  }
  // Scratch: each reader holds a slot as kept and one of its planes, the writer a record's.
  static uint64_t QueueBytes(const ThreadedTierOptions& options) {
    return options.reads_max * sizeof(ReadOp) + options.stores_max * kStoreOpBytes +
           (options.readers + 1) * 2 * options.slot_bytes_max;
  }

  std::string_view name() const override { return store_->name(); }
  bool writable() const override { return store_->writable(); }

  void Contains(const NamespaceId& name_space, std::span<const BlockKey> keys, std::span<uint32_t> groups) override {
    std::fill(groups.begin(), groups.end(), 0);
    if (MayFetch()) store_->Contains(name_space, keys, groups);
  }

  std::optional<TierRun> FindRun(const NamespaceId& name_space, const Digest& parent, std::span<const TokenId> wanted,
                                 uint32_t groups, bool whole) override {
    if (!MayFetch()) return std::nullopt;
    return store_->FindRun(name_space, parent, wanted, groups, whole);
  }

  std::vector<NamespaceDigests> NamespacesWith(std::span<const TokenId> tokens) const override {
    return store_->NamespacesWith(tokens);
  }

  bool Fetch(TierTicket ticket, uint32_t first_index, std::span<const TierRead> reads,
             Clock::time_point deadline) override {
    {
      const std::lock_guard lock(mutex_);
      if (!fetch_breaker_.WouldAllow(Clock::now()) || free_ops_.size() < reads.size()) {
        stats_.fetch.declined += reads.size();
        return false;
      }
      fetch_breaker_.Begin();
      for (uint32_t i = 0; i < reads.size(); ++i) {
        const uint32_t id = free_ops_.back();
        free_ops_.pop_back();
        ReadOp& op = ops_[id];
        CHECK_LE(reads[i].tokens.size(), op.tokens.size());
        op.state = ReadOp::State::kQueued;
        op.abandoned = false;
        op.ticket = ticket;
        op.index = first_index + i;
        op.read = reads[i];
        std::copy(reads[i].tokens.begin(), reads[i].tokens.end(), op.tokens.begin());
        op.read.tokens = std::span(op.tokens).first(reads[i].tokens.size());
        op.deadline = deadline;
        op.buffer = UINT32_MAX;
        queue_.push_back(id);
        live_.push_back(id);
      }
    }
    reads_ready_.notify_all();
    return true;
  }

  void Cancel(TierTicket ticket) override {
    {
      const std::lock_guard lock(mutex_);
      for (size_t i = 0; i < live_.size();) {
        ReadOp& op = ops_[live_[i]];
        if (op.ticket == ticket) {
          ++stats_.fetch.cancelled;
          Abandon(i);
        } else {
          ++i;
        }
      }
      for (uint32_t id : showing_)
        if (ops_[id].ticket == ticket) ops_[id].abandoned = true;
      fetch_breaker_.Abandon();
    }
    reads_ready_.notify_all();
  }

  size_t Drain(const std::function<void(const TierFetched&)>& visit) override {
    std::unique_lock lock(mutex_);
    const Clock::time_point now = Clock::now();
    bool late = false;
    for (size_t i = 0; i < live_.size();) {
      ReadOp& op = ops_[live_[i]];
      if (op.state == ReadOp::State::kDone) {
        showing_.push_back(Unlist(i));
      } else if (now >= op.deadline) {
        ++stats_.fetch.timeout;
        late = true;
        late_.push_back({.ticket = op.ticket, .index = op.index, .outcome = TierOutcome::kTimeout});
        Abandon(i);
      } else {
        ++i;
      }
    }
    if (late) NoteFetch(false, "a read took longer than its deadline", now, lock);
    size_t shown = 0;
    for (size_t i = 0; i < showing_.size(); ++i) {
      const uint32_t id = showing_[i];
      ReadOp& op = ops_[id];
      op.state = ReadOp::State::kShowing;
      if (!op.abandoned) {
        TierFetched fetched{.ticket = op.ticket, .index = op.index, .outcome = op.outcome, .service_ms = op.service_ms};
        if (op.outcome == TierOutcome::kOk) fetched.payload = Buffer(op.buffer, op.read.group);
        lock.unlock();
        visit(fetched);
        ++shown;
        lock.lock();
      }
      Free(id);
    }
    showing_.clear();
    std::vector<TierFetched> late_now;
    late_now.swap(late_);
    lock.unlock();
    reads_ready_.notify_all();  // buffers came back
    for (const TierFetched& fetched : late_now) visit(fetched);
    return shown + late_now.size();
  }

  bool HasRoomFor(uint64_t payload_bytes) const override {
    const uint64_t buffers = (payload_bytes + options_.slot_bytes_max - 1) / options_.slot_bytes_max;
    const std::lock_guard lock(mutex_);
    return store_->writable() && !free_stores_.empty() && free_store_buffers_.size() >= buffers &&
           store_breaker_.WouldAllow(Clock::now());
  }

  StoreOutcome Store(const TierRecord& record) override {
    CHECK_LE(record.payloads.size(), kRecordBlocksMax);
    std::unique_lock lock(mutex_);
    if (!store_->writable() || free_stores_.empty() || free_store_buffers_.size() < record.payloads.size() ||
        !store_breaker_.WouldAllow(Clock::now())) {
      ++stats_.store.declined;
      return StoreOutcome::kDeclined;
    }
    store_breaker_.Begin();
    const uint32_t id = free_stores_.back();
    free_stores_.pop_back();
    StoreOp& op = stores_[id];
    op.buffers.clear();
    for (size_t i = 0; i < record.payloads.size(); ++i) {
      op.buffers.push_back(free_store_buffers_.back());
      free_store_buffers_.pop_back();
    }
    lock.unlock();  // nobody else has this op or its buffers
    op.name_space = record.name_space;
    op.group = record.group;
    op.parent = record.parent;
    op.first_token = record.first_token;
    op.keys.assign(record.keys.begin(), record.keys.end());
    op.tokens.assign(record.tokens.begin(), record.tokens.end());
    op.payloads.clear();
    for (size_t i = 0; i < record.payloads.size(); ++i) {
      CHECK_LE(record.payloads[i].size(), options_.slot_bytes_max);
      const std::span<std::byte> bytes = Bytes(op.buffers[i]).first(record.payloads[i].size());
      std::memcpy(bytes.data(), record.payloads[i].data(), bytes.size());
      op.payloads.push_back(bytes);
    }
    lock.lock();
    writes_.push_back({.store = id});
    lock.unlock();
    writes_ready_.notify_all();
    return StoreOutcome::kAccepted;
  }

  void Erase(const Digest& tenant, std::function<void(absl::StatusOr<TierErased>)> done) override {
    if (!store_->writable()) {
      done(absl::FailedPreconditionError("another process writes to this cache directory; purge there"));
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      writes_.push_back({.erase = tenant, .erased = std::move(done)});
    }
    writes_ready_.notify_all();
  }

  bool Flush(Clock::time_point deadline) override {
    if (!store_->writable()) return true;
    std::unique_lock lock(mutex_);
    const uint64_t wanted = ++flushes_wanted_;
    writes_.push_back({.flush = true});
    writes_ready_.notify_all();
    return flushed_.wait_until(lock, deadline, [&] { return flushes_done_ >= wanted; }) && flush_ok_;
  }

  void SetWake(std::function<void()> wake) override {
    std::unique_lock lock(mutex_);
    waked_.wait(lock, [&] { return waking_ == 0; });  // the one before is not called any more
    wake_ = wake ? std::make_shared<std::function<void()>>(std::move(wake)) : nullptr;
  }

  TierStats stats() const override {
    TierStats stats;
    {
      const std::lock_guard lock(mutex_);
      stats = stats_;
      stats.stores_queued = stores_.size() - free_stores_.size();
      stats.fetch_breaker = StateOf(fetch_breaker_);
      stats.store_breaker = StateOf(store_breaker_);
    }
    stats.name = std::string(store_->name());
    stats.writable = store_->writable();
    stats.usage = store_->usage();
    return stats;
  }

 private:
  bool MayFetch() const {
    const std::lock_guard lock(mutex_);
    return fetch_breaker_.WouldAllow(Clock::now());
  }

  std::span<std::byte> Bytes(uint32_t buffer) const {
    return staging_.bytes().subspan(buffer * options_.slot_bytes_max, options_.slot_bytes_max);
  }
  std::span<const std::byte> Buffer(uint32_t buffer, GroupId group) const {
    return Bytes(buffer).first(store_->slot_bytes(group));
  }

  // All below: mutex_ is held.

  // The op at `at` of live_ leaves it.
  uint32_t Unlist(size_t at) {
    const uint32_t id = live_[at];
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(at));
    return id;
  }
  // Nothing of it is shown any more; a thread that is reading it frees it.
  void Abandon(size_t at) {
    const uint32_t id = Unlist(at);
    ReadOp& op = ops_[id];
    op.abandoned = true;
    if (op.state == ReadOp::State::kQueued) {
      queue_.erase(std::find(queue_.begin(), queue_.end(), id));
      Free(id);
    } else if (op.state == ReadOp::State::kDone) {
      Free(id);
    }
  }
  void Free(uint32_t id) {
    ReadOp& op = ops_[id];
    if (op.buffer != UINT32_MAX) free_read_buffers_.push_back(op.buffer);
    op.buffer = UINT32_MAX;
    op.state = ReadOp::State::kFree;
    free_ops_.push_back(id);
  }

  // One result for a breaker. May let go of the lock to log.
  void Note(Breaker& breaker, bool ok, std::string_view what, std::string_view why, Clock::time_point now,
            std::unique_lock<std::mutex>& lock) {
    const bool changed = ok ? breaker.Succeed() : breaker.Fail(now);
    if (!ok) stats_.last_error = std::string(why);
    if (!changed || !options_.log) return;
    const std::string line = ok ? absl::StrCat("the ", std::string(name()), " tier ", std::string(what), " again")
                                : absl::StrCat("the ", std::string(name()), " tier has stopped to ", std::string(what),
                                               " for now: ", std::string(why), "; it will be tried again");
    lock.unlock();
    options_.log(line);
    lock.lock();
  }
  void NoteFetch(bool ok, std::string_view why, Clock::time_point now, std::unique_lock<std::mutex>& lock) {
    Note(fetch_breaker_, ok, ok ? "reads" : "read", why, now, lock);
  }

  void CallWake(std::unique_lock<std::mutex>& lock) {
    const std::shared_ptr<std::function<void()>> wake = wake_;
    if (wake == nullptr) return;
    ++waking_;
    lock.unlock();
    (*wake)();
    lock.lock();
    if (--waking_ == 0) waked_.notify_all();
  }

  void ReadLoop() {
    std::unique_lock lock(mutex_);
    while (true) {
      reads_ready_.wait(lock, [&] { return stop_ || (!queue_.empty() && !free_read_buffers_.empty()); });
      if (stop_) return;
      const uint32_t id = queue_.front();
      queue_.pop_front();
      ReadOp& op = ops_[id];
      op.state = ReadOp::State::kRunning;
      op.buffer = free_read_buffers_.back();
      free_read_buffers_.pop_back();
      const TierRead read = op.read;
      lock.unlock();
      const std::span<std::byte> out = Bytes(op.buffer).first(store_->slot_bytes(read.group));
      const Clock::time_point start = Clock::now();
      const TierOutcome outcome = store_->Read(read, out);
      const Clock::time_point end = Clock::now();
      lock.lock();
      CountFetch(outcome, out.size(), Seconds(end - start));
      op.outcome = outcome;
      op.service_ms = Seconds(end - start) * 1e3;
      op.state = ReadOp::State::kDone;
      // Damage is the record's fault; the tier itself works. What came too late says nothing good of it.
      const bool tells = outcome == TierOutcome::kError || (outcome == TierOutcome::kOk && !op.abandoned);
      if (op.abandoned) Free(id);
      if (tells) NoteFetch(outcome == TierOutcome::kOk, "a read failed", end, lock);
      CallWake(lock);
    }
  }

  void CountFetch(TierOutcome outcome, uint64_t bytes, double seconds) {
    TierStats::Operation& fetch = stats_.fetch;
    switch (outcome) {
      case TierOutcome::kOk:
        ++fetch.ok;
        fetch.bytes += bytes;
        fetch.seconds += seconds;
        return;
      case TierOutcome::kMissing:
        ++fetch.missing;
        return;
      case TierOutcome::kChecksum:
        ++fetch.checksum_failed;
        return;
      case TierOutcome::kDamaged:
        ++fetch.damaged;
        return;
      case TierOutcome::kError:
      case TierOutcome::kTimeout:
        ++fetch.error;
        return;
    }
  }

  void WriteLoop() {
    LowerThreadPriority();
    std::unique_lock lock(mutex_);
    while (true) {
      const bool work = writes_ready_.wait_for(lock, kMaintainEvery, [&] { return stop_ || !writes_.empty(); });
      if (stop_) return;
      if (!work) {
        lock.unlock();
        while (store_->Maintain() && !HasWrites()) {
        }
        lock.lock();
        continue;
      }
      WriteOp op = std::move(writes_.front());
      writes_.pop_front();
      if (op.flush) {
        Flushed(lock);
      } else if (op.erase) {
        lock.unlock();
        absl::StatusOr<TierErased> erased = store_->Erase(*op.erase);
        const bool ok = erased.ok();
        op.erased(std::move(erased));
        lock.lock();
        ++(ok ? stats_.erase.ok : stats_.erase.error);
      } else {
        WriteOne(op.store, lock);
      }
    }
  }

  bool HasWrites() const {
    const std::lock_guard lock(mutex_);
    return stop_ || !writes_.empty();
  }

  void Flushed(std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    const absl::Status status = store_->Flush();
    lock.lock();
    flush_ok_ = status.ok();
    if (!status.ok()) stats_.last_error = std::string(status.message());
    ++flushes_done_;
    flushed_.notify_all();
  }

  void WriteOne(uint32_t id, std::unique_lock<std::mutex>& lock) {
    StoreOp& op = stores_[id];
    lock.unlock();
    const TierRecord record{.name_space = op.name_space,
                            .group = op.group,
                            .parent = op.parent,
                            .first_token = op.first_token,
                            .keys = op.keys,
                            .tokens = op.tokens,
                            .payloads = op.payloads};
    const Clock::time_point start = Clock::now();
    const absl::StatusOr<uint64_t> written = store_->Write(record);
    const Clock::time_point end = Clock::now();
    lock.lock();
    if (written.ok()) {
      ++stats_.store.ok;
      stats_.store.bytes += *written * op.payloads[0].size();
      stats_.store.seconds += Seconds(end - start);
    } else {
      ++stats_.store.error;
    }
    free_store_buffers_.insert(free_store_buffers_.end(), op.buffers.begin(), op.buffers.end());
    free_stores_.push_back(id);
    if (written.ok() && *written == 0) {
      store_breaker_.Abandon();  // it was all there: that says nothing about writing
    } else {
      Note(store_breaker_, written.ok(), written.ok() ? "writes" : "write", std::string(written.status().message()),
           end, lock);
    }
    CallWake(lock);
  }

  const ThreadedTierOptions options_;
  const std::unique_ptr<TierStore> store_;
  const Region staging_, queues_;

  mutable std::mutex mutex_;
  std::condition_variable reads_ready_, writes_ready_, flushed_, waked_;
  std::vector<ReadOp> ops_;                   // [reads_max]
  std::vector<uint32_t> free_ops_;            // a stack
  std::deque<uint32_t> queue_;                // to be read, in order
  std::vector<uint32_t> live_;                // queued, running or done; not shown, cancelled or late
  std::vector<uint32_t> showing_;             // of the Drain that is going on
  std::vector<TierFetched> late_;             // of the Drain that is going on
  std::vector<uint32_t> free_read_buffers_;   // indices of staging_, slot_bytes_max each
  std::vector<StoreOp> stores_;               // [stores_max]
  std::vector<uint32_t> free_stores_;         // a stack
  std::vector<uint32_t> free_store_buffers_;  // a stack
  std::deque<WriteOp> writes_;                // in order
  Breaker fetch_breaker_, store_breaker_;
  TierStats stats_;
  uint64_t flushes_wanted_ = 0, flushes_done_ = 0;
  bool flush_ok_ = true;
  bool stop_ = false;
  std::shared_ptr<std::function<void()>> wake_;
  uint32_t waking_ = 0;  // calls of it that are going on
  std::vector<std::thread> threads_;
};

}  // namespace

std::vector<Footprint> ThreadedTierFootprints(std::string_view name, const ThreadedTierOptions& options) {
  return {{absl::StrCat(std::string(name), " staging"), ThreadedTier::StagingBytes(options)},
          {absl::StrCat(std::string(name), " queues"), ThreadedTier::QueueBytes(options)}};
}

std::unique_ptr<Tier> MakeThreadedTier(const ThreadedTierOptions& options, std::unique_ptr<TierStore> store,
                                       Ledger& ledger) {
  return std::make_unique<ThreadedTier>(options, std::move(store), ledger);
}

}  // namespace reprise
