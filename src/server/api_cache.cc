// The endpoints of the cache. docs/cache.md is their manual.
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/api.h"
#include "server/cache_stats.h"
#include "server/completion_job.h"
#include "server/prompt_fork.h"

namespace reprise {
namespace {

// The receipt of a request that was not run, with where its prompt and the cache part.
HttpResponse Explained(const CompletionJob& job, PrefixReport report) {
  if (!job.request.cache_read) {
    report.match = {.tokens = 0, .reason = MissReason::kReadDisabled};
    report.tier = {};
  }
  const TextCodec& codec = *job.model->codec;
  const std::vector<TokenId>& prompt = job.generation.prompt;
  Json receipt = ReceiptOf(job.receipt, prompt, report, codec);
  receipt["prompt_tokens"] = prompt.size();
  const bool whole = !job.prompt.truncation || job.prompt.truncation->dropped_messages == 0;
  const ChatRequest* const chat = job.endpoint == Endpoint::kChat && whole ? &job.request.chat : nullptr;
  receipt["fork"] = ForkOf(prompt, report, chat, job.prompt.chat.text, codec);
  return JsonResponse(Dump(Json({{"prefix_cache_receipt", std::move(receipt)}})));
}

}  // namespace

void Api::AnswerQuestion(std::shared_ptr<HttpExchange> exchange, HttpResponse response) {
  queue_->Post([active = active_, exchange = std::move(exchange), response = std::move(response)]() mutable {
    --*active;
    exchange->Reply(std::move(response));
  });
}

void Api::AnswerQuestion(CompletionJob& job, HttpResponse response) {
  job.GiveBack();
  AnswerQuestion(job.exchange, std::move(response));
}

void Api::Explain(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  if (const auto why = TooMany(1)) return exchange->Reply(ErrorResponse(*why));
  auto job = std::make_shared<CompletionJob>();
  job->tenant = access_.TenantOf(request);
  job->http = std::move(request);
  job->exchange = std::move(exchange);
  job->model = model_;
  job->receipt.id = "pcr_" + NextId();
  ++*active_;
  threads_.Run([this, job = std::move(job)] {
    if (const auto why = job->PrepareToExplain(options_)) return AnswerQuestion(*job, ErrorResponse(*why));
    queue_->Post([this, job] { AskEngine(job); });
  });
}

// On the I/O thread, which knows whether anyone still waits for the answer.
void Api::AskEngine(const std::shared_ptr<CompletionJob>& job) {
  if (job->exchange->gone()) return AnswerQuestion(*job, ErrorResponse(Internal("the client is gone")));
  // The engine's thread has steps to run: words are made on a request thread again.
  const auto done = [this, job](const PrefixReport& report) {
    threads_.Run([this, job, report] { AnswerQuestion(*job, Explained(*job, report)); });
  };
  EngineInterface::ExplainRequest asked{
      .prompt = job->generation.prompt, .scope = job->generation.scope, .adapters = job->generation.adapters};
  if (!job->model->engine->Explain(std::move(asked), done)) {
    AnswerQuestion(*job, ErrorResponse(ShuttingDown()));
  }
}

void Api::Purge(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  if (const auto why = TooMany(1)) return exchange->Reply(ErrorResponse(*why));
  std::string tenant = access_.TenantOf(request);
  auto shared = std::make_shared<HttpRequest>(std::move(request));
  ++*active_;
  threads_.Run([this, shared, tenant = std::move(tenant), exchange = std::move(exchange), model = model_] {
    const RequestLimits limits{JsonLimitsOf(options_.limits, *model), model->codec->vocab_size()};
    const auto wrong = ParseEmpty(shared->body, limits);
    *shared = HttpRequest();  // gives its memory back
    if (wrong) return AnswerQuestion(exchange, ErrorResponse(*wrong));
    const auto done = [this, exchange](const EngineInterface::Purged& purged) {
      if (purged.tier && !purged.tier->ok())
        return AnswerQuestion(
            exchange, ErrorResponse(Internal(absl::StrCat("forgotten in memory, but not in the cache directory: ",
                                                          std::string(purged.tier->status().message())))));
      AnswerQuestion(exchange, JsonResponse(PurgedBody(purged)));
    };
    if (!model->engine->Purge(tenant, done)) AnswerQuestion(exchange, ErrorResponse(ShuttingDown()));
  });
}

HttpResponse Api::Metrics() const {
  const KvCache::Stats cache = model_->engine->cache_stats();
  const EngineInterface::Stats engine = model_->engine->stats();
  const std::optional<TierStats> tier = model_->engine->tier_stats();
  return {.body = MetricsText({*requests_, *counters_, cache, engine, tier}), .content_type = kMetricsType};
}

HttpResponse Api::CacheStats() const {
  return JsonResponse(
      CacheStatsBody(*counters_, model_->engine->cache_stats(), model_->engine->stats(), model_->engine->tier_stats()));
}

}  // namespace reprise
