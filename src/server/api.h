// The endpoints: which request goes where, and what it takes to turn one into a generation.
//
// Ownership: engine and codec must outlive the server's Stop.
// Threads:   the I/O thread only, but for active(); JSON and tokens are made on the request threads.
// Errors:    every one is answered in the shape of SCHEMA 3.
// Design:    docs/http.md
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/access.h"
#include "server/cache_stats.h"
#include "server/http_server.h"
#include "server/metrics.h"
#include "server/request_log.h"
#include "server/request_threads.h"
#include "server/response.h"
#include "server/text_codec.h"

namespace reprise {

struct ApiOptions {
  bool any_model = false;
  bool log_prompts = false;
  std::optional<Digest> trace_key;  // of the prefix ids in the log; absent: none are written
  std::vector<std::string> api_keys;
  std::vector<std::string> cors_origins;
  ServerLimits limits;
};

inline constexpr uint32_t kRequestThreads = 2;  // so one long prompt does not hold up the others

// Values in one body: token ids of a prompt that is too long by far still get context_too_long.
uint64_t JsonValuesMax(uint32_t context_max);

// What there is to serve. Constant once it is attached.
struct ServedModel {
  EngineInterface* engine = nullptr;
  const TextCodec* codec = nullptr;
  std::vector<std::string> names;  // the first is the default
};

struct CompletionJob;

class Api : public HttpHandler {
 public:
  explicit Api(const ApiOptions& options);

  // Before the first request.
  void SetQueue(std::shared_ptr<IoQueue> queue) { queue_ = std::move(queue); }
  void Attach(ServedModel model);
  void Drain() { draining_ = true; }
  void Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) override;
  MaybeError CheckHead(const HttpRequest& head) const override;
  std::string CommonHeaders(std::string_view origin) const override { return access_.CorsHeaders(origin); }

  // Generations that the engine has not ended, and questions that it has not answered. Any thread.
  uint32_t active() const { return *active_; }

 private:
  void Complete(Endpoint endpoint, HttpRequest request, std::shared_ptr<HttpExchange> exchange);
  void Start(std::shared_ptr<CompletionJob> job);
  RequestLine LineOf(const CompletionJob& job) const;
  // Answers a request that goes no further, and logs it.
  void Refuse(CompletionJob& job, const RequestError& error);
  // Whether `n` more generations may begin.
  MaybeError TooMany(uint32_t n) const;
  // Runs `answer`, which gets the body, on a request thread.
  using Answer = std::function<HttpResponse(const ServedModel& model, const std::string& body)>;
  void AnswerLater(HttpRequest request, std::shared_ptr<HttpExchange> exchange, Answer answer);
  // What the cache has of the prompt of a completion's body, asked between two steps of the engine. Like Purge it
  // counts as a generation until it is answered: it is bounded as they are, and Stop waits for it.
  void Explain(HttpRequest request, std::shared_ptr<HttpExchange> exchange);
  void AskEngine(const std::shared_ptr<CompletionJob>& job);
  void Purge(HttpRequest request, std::shared_ptr<HttpExchange> exchange);
  // From any thread; the question does not count any more, and a job has given back what it kept.
  void AnswerQuestion(std::shared_ptr<HttpExchange> exchange, HttpResponse response);
  void AnswerQuestion(CompletionJob& job, HttpResponse response);
  HttpResponse CacheStats() const;
  HttpResponse Metrics() const;
  HttpResponse Tokenize(const ServedModel& model, const std::string& body) const;
  HttpResponse Detokenize(const ServedModel& model, const std::string& body) const;
  HttpResponse Models(std::string_view path) const;
  MaybeError NotServing() const;
  uint64_t NextRandom();
  std::string NextId();  // 32 digits

  const ApiOptions options_;
  const AccessPolicy access_;
  const std::shared_ptr<BodyBudget> collected_;  // of replies that are not streamed
  const std::shared_ptr<BodyBudget> grammars_;   // that running requests follow
  const std::shared_ptr<PrefixCounters> counters_ = std::make_shared<PrefixCounters>();
  const std::shared_ptr<RequestCounters> requests_ = std::make_shared<RequestCounters>();
  std::shared_ptr<IoQueue> queue_;
  std::shared_ptr<const ServedModel> model_;  // null: still loading
  bool draining_ = false;
  uint64_t random_state_;
  const int64_t started_s_;  // seconds since 1970
  std::shared_ptr<std::atomic<uint32_t>> active_ = std::make_shared<std::atomic<uint32_t>>(0);
  RequestThreads threads_;  // last: its work uses the rest
};

}  // namespace reprise
