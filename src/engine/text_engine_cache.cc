// What the engine does with its cache besides running requests: questions, purges, and the tier's part of the loop.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/text_engine.h"

namespace reprise {
namespace {

// A pause of half a millisecond between two steps of running replies, at 8 GB/s.
constexpr uint64_t kStoreBytesWhileDecoding = 4 << 20;
// What an engine that ends takes to store what waits, even without a deadline to drain by.
constexpr auto kSaveAtLeast = std::chrono::seconds(2);

}  // namespace

bool TextEngine::Explain(ExplainRequest request, std::function<void(PrefixReport)> done) {
  CHECK(!request.prompt.empty());
  return Post([this, request = std::move(request), done = std::move(done)] {
    done(cache_->Explain(NamespaceOf(request.scope, AdaptersOf(adapters(), request.adapters)), request.prompt,
                         request.view));
  });
}

bool TextEngine::Purge(std::string tenant, std::function<void(Purged)> done) {
  return Post([this, tenant = std::move(tenant), done = std::move(done)] {
    const KvCache::Purged memory = cache_->Purge(tenant);
    requests_changed_ = true;
    if (cache_->tier() == nullptr) return done({.memory = memory});
    const std::optional<Digest> tag = cache_->Namespace({.tenant = tenant}).tag(NamespaceTag::kTenant);
    // Until the tier has done it, blocks may be brought from there that it will not have any more: once more, then.
    cache_->tier()->Erase(*tag, [this, self = self_, tenant, memory, done](absl::StatusOr<TierErased> erased) {
      Purged purged{.memory = memory, .tier = std::move(erased)};
      const auto again = [&engine = *this, tenant, purged, done]() mutable {  // run by the engine, if at all
        const KvCache::Purged brought = engine.cache_->Purge(tenant);
        engine.requests_changed_ = true;
        purged.memory.blocks += brought.blocks;
        purged.memory.pinned += brought.pinned;
        done(std::move(purged));
      };
      bool posted = false;
      {
        const std::lock_guard lock(self->mutex);
        posted = self->engine != nullptr && self->engine->Post(again);
      }
      if (!posted) done(std::move(purged));
    });
  });
}

std::optional<TierStats> TextEngine::tier_stats() const {
  return cache_->tier() == nullptr ? std::nullopt : std::optional(cache_->tier()->stats());
}

KvCache::Stats TextEngine::cache_stats() const {
  const std::lock_guard lock(mutex_);
  return cache_stats_;
}

void TextEngine::PollTier() {
  if (cache_->tier() == nullptr) return;
  // Copies between two tokens of a reply make a pause; at the end of a prompt they do not show.
  cache_->Poll(decoding_ ? kStoreBytesWhileDecoding : UINT64_MAX);
}

// All that waits to be stored is, and lasts, if that is done by then.
void TextEngine::SaveToTier() {
  if (cache_->tier() == nullptr) return;
  Clock::time_point deadline = Clock::now() + kSaveAtLeast;
  {
    const std::lock_guard lock(mutex_);
    deadline = std::max(deadline, save_until_);
  }
  while (cache_->Poll(UINT64_MAX) && Clock::now() < deadline) {
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, kTierDeadlines, [&] { return tier_news_; });
    tier_news_ = false;
  }
  (void)cache_->tier()->Flush(deadline);  // what did not last is a miss next time
}

}  // namespace reprise
