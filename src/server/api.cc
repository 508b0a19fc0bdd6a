#include "server/api.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <random>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "server/completion_job.h"
#include "server/reply.h"
#include "server/request_log.h"

namespace reprise {
namespace {

constexpr uint64_t kSeedMask = (uint64_t{1} << 53) - 1;  // exact in every JSON reader's double

constexpr std::string_view kChatPath = "/v1/chat/completions";
constexpr std::string_view kTextPath = "/v1/completions";
constexpr std::string_view kModelsPath = "/v1/models";
constexpr std::string_view kModelPath = "/v1/models/";  // and a name
constexpr std::string_view kTokenizePath = "/tokenize";
constexpr std::string_view kDetokenizePath = "/detokenize";
constexpr std::string_view kExplainPath = "/v1/cache/explain";
constexpr std::string_view kStatsPath = "/v1/cache/stats";
constexpr std::string_view kPurgePath = "/v1/cache/purge";
constexpr std::string_view kMetricsPath = "/metrics";
constexpr std::string_view kHealthPath = "/health";
constexpr std::string_view kReadyPath = "/ready";

struct Route {
  std::string_view path;
  std::string_view method;
};
constexpr Route kRoutes[] = {{kChatPath, "POST"},    {kTextPath, "POST"},     {kModelsPath, "GET"},
                             {kModelPath, "GET"},    {kTokenizePath, "POST"}, {kDetokenizePath, "POST"},
                             {kExplainPath, "POST"}, {kStatsPath, "GET"},     {kPurgePath, "POST"},
                             {kMetricsPath, "GET"},  {kHealthPath, "GET"},    {kReadyPath, "GET"}};

int64_t NowSeconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

HttpResponse NoSuchPath(const std::string& path) {
  std::vector<std::string> known;
  for (const Route& route : kRoutes)
    known.push_back(absl::StrCat(std::string(route.method), " ", std::string(route.path)));
  RequestError error = Unsupported(path.substr(0, 128), absl::StrCat("the endpoints are ", absl::StrJoin(known, ", ")));
  error.http_status = 404;
  return ErrorResponse(error);
}

HttpResponse WrongMethod(const HttpRequest& request, std::string_view right) {
  RequestError error = Unsupported(absl::StrCat(request.method, " ", request.path),
                                   absl::StrCat("the method of this endpoint is ", std::string(right)));
  error.http_status = 405;
  HttpResponse response = ErrorResponse(error);
  response.headers.emplace_back("Allow", right == "GET" ? "GET, HEAD" : std::string(right));
  return response;
}

// "%2F" -> "/": names of models may have any character.
std::string PercentDecoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    uint8_t byte = 0;
    const char* const digits = text.data() + i + 1;
    if (text[i] == '%' && text.size() - i > 2 && std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      out += static_cast<char>(byte);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

// Different for different conversations, so that the ids of tool calls in one of them differ between turns also
// when a client always sends the same seed.
uint64_t IdSeed(uint64_t seed, std::span<const TokenId> prompt) {
  uint64_t hash = seed ^ 0xCBF29CE484222325;  // FNV-1a
  for (const TokenId token : prompt) hash = (hash ^ static_cast<uint32_t>(token.value())) * 0x100000001B3;
  return hash;
}

}  // namespace

Api::Api(const ApiOptions& options)
    : options_(options),
      access_(options.api_keys, options.cors_origins),
      collected_(std::make_shared<BodyBudget>(options.limits.replies_bytes_max)),
      grammars_(std::make_shared<BodyBudget>(options.limits.grammars_bytes_max)),
      random_state_((uint64_t{std::random_device()()} << 32) | std::random_device()()),
      started_s_(NowSeconds()),
      threads_(kRequestThreads) {}

void Api::Attach(ServedModel model) {
  CHECK(!model.names.empty());
  model_ = std::make_shared<const ServedModel>(std::move(model));
}

// SplitMix64: ids and default seeds, which need to differ, not to be secret.
uint64_t Api::NextRandom() {
  uint64_t z = random_state_ += 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

std::string Api::NextId() {
  return absl::StrCat(absl::Hex(NextRandom(), absl::kZeroPad16), absl::Hex(NextRandom(), absl::kZeroPad16));
}

MaybeError Api::NotServing() const {
  if (draining_) return ShuttingDown();
  if (model_ == nullptr) return Loading();
  return std::nullopt;
}

MaybeError Api::TooMany(uint32_t n) const {
  const uint32_t most = options_.limits.requests_max;
  if (*active_ + n <= most) return std::nullopt;
  return QueueFull(absl::StrCat("the server has ", active_->load(), " choices of replies in work or waiting, ", n,
                                " more would be above ", most),
                   most, 1);
}

MaybeError Api::CheckHead(const HttpRequest& head) const {
  const bool open = head.path == kHealthPath || head.path == kReadyPath || head.method == "OPTIONS";
  return open ? std::nullopt : access_.Check(head);
}

void Api::Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  const std::string_view path = request.path.starts_with(kModelPath) ? kModelPath : std::string_view(request.path);
  const auto* const route =
      std::find_if(std::begin(kRoutes), std::end(kRoutes), [&](const Route& r) { return r.path == path; });
  if (route == std::end(kRoutes)) return exchange->Reply(NoSuchPath(request.path));
  if (request.method == "OPTIONS") {
    return exchange->Reply(access_.Preflight(request, absl::StrCat(std::string(route->method), ", OPTIONS")));
  }
  const bool method_fits = route->method == request.method || (route->method == "GET" && request.method == "HEAD");
  if (!method_fits) return exchange->Reply(WrongMethod(request, route->method));

  if (const auto why = CheckHead(request)) return exchange->Reply(ErrorResponse(*why));
  if (path == kHealthPath) return exchange->Reply(JsonResponse(R"({"status":"ok"})"));
  if (const auto why = NotServing()) return exchange->Reply(ErrorResponse(*why));
  if (path == kReadyPath) return exchange->Reply(JsonResponse(R"({"status":"ready"})"));
  if (path == kModelsPath || path == kModelPath) return exchange->Reply(Models(request.path));
  if (path == kStatsPath) return exchange->Reply(CacheStats());
  if (path == kMetricsPath) return exchange->Reply(Metrics());
  if (path == kExplainPath) return Explain(std::move(request), std::move(exchange));
  if (path == kPurgePath) return Purge(std::move(request), std::move(exchange));
  if (path == kTokenizePath) {
    return AnswerLater(std::move(request), std::move(exchange),
                       [this](const ServedModel& model, const std::string& body) { return Tokenize(model, body); });
  }
  if (path == kDetokenizePath) {
    return AnswerLater(std::move(request), std::move(exchange),
                       [this](const ServedModel& model, const std::string& body) { return Detokenize(model, body); });
  }
  Complete(path == kChatPath ? Endpoint::kChat : Endpoint::kText, std::move(request), std::move(exchange));
}

void Api::Complete(Endpoint endpoint, HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  auto job = std::make_shared<CompletionJob>();
  job->endpoint = endpoint;
  job->tenant = access_.TenantOf(request);
  job->http = std::move(request);
  job->exchange = std::move(exchange);
  job->model = model_;
  const std::string id = NextId();
  job->id = absl::StrCat(endpoint == Endpoint::kChat ? "chatcmpl-" : "cmpl-", id);
  job->receipt.id = absl::StrCat("pcr_", id);
  job->received = std::chrono::steady_clock::now();
  if (const auto why = TooMany(1)) return Refuse(*job, *why);
  threads_.Run([this, job = std::move(job)] {
    job->error = job->Prepare(options_, grammars_);
    queue_->Post([this, job] { Start(job); });
  });
}

RequestLine Api::LineOf(const CompletionJob& job) const {
  return {.id = job.id,
          .tenant = job.tenant,
          .model = job.request.model,
          .endpoint = std::string(job.endpoint == Endpoint::kChat ? kChatPath : kTextPath),
          .prefix_ids = job.prefix_ids};
}

void Api::Refuse(CompletionJob& job, const RequestError& error) {
  RequestLine line = LineOf(job);
  line.total_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - job.received).count();
  line.status = error.http_status;
  line.prefix_ids.clear();  // it was not served
  line.reason = job.exchange->gone() ? "client_gone" : error.code;
  LogRequest(line);
  ++requests_->by_status[line.status];
  job.GiveBack();
  job.exchange->Reply(ErrorResponse(error));
}

void Api::Start(std::shared_ptr<CompletionJob> job) {
  CompletionRequest& request = job->request;
  if (!job->error && draining_) job->error = ShuttingDown();
  if (!job->error) job->error = TooMany(request.n);
  if (job->error) return Refuse(*job, *job->error);
  if (job->exchange->gone()) return Refuse(*job, Internal("the client is gone"));

  const uint64_t seed = request.seed.value_or(NextRandom() & kSeedMask);
  ReplyOptions options;
  options.stream = request.stream;
  options.n = request.n;
  options.echo = std::move(job->echo);
  options.format = std::move(job->prompt.chat.format);
  options.id_seed = IdSeed(seed, job->generation.prompt);
  options.line = LineOf(*job);
  options.received = job->received;
  options.collected = collected_;
  options.counters = counters_;
  options.requests = requests_;
  if (request.receipt) options.receipt = std::move(job->receipt);
  options.charges = std::move(job->charges);
  options.head = {.endpoint = job->endpoint,
                  .id = job->id,
                  .model = std::move(request.model),
                  .created = NowSeconds(),
                  .seed = seed,
                  .include_usage = request.stream && request.include_usage,
                  .return_tokens = request.return_tokens,
                  .logprobs = request.logprobs,
                  .truncation = job->prompt.truncation};
  *active_ += request.n;
  const auto reply = std::make_shared<Reply>(std::move(options), job->exchange, *job->model->engine, *job->model->codec,
                                             [active = active_, n = request.n] { *active -= n; });
  reply->Submit(std::move(job->generation), queue_);
}

void Api::AnswerLater(HttpRequest request, std::shared_ptr<HttpExchange> exchange, Answer answer) {
  // A shared_ptr, because a std::function must be copyable and a request is not.
  auto shared = std::make_shared<HttpRequest>(std::move(request));
  threads_.Run([this, shared, exchange = std::move(exchange), model = model_, answer = std::move(answer)] {
    HttpResponse response = answer(*model, shared->body);
    *shared = HttpRequest();  // gives its memory back
    queue_->Post([exchange, response = std::move(response)]() mutable { exchange->Reply(std::move(response)); });
  });
}

HttpResponse Api::Tokenize(const ServedModel& model, const std::string& body) const {
  const RequestLimits limits{JsonLimitsOf(options_.limits, model), model.codec->vocab_size()};
  TokenizeRequest parsed;
  if (const auto error = ParseTokenize(body, limits, &parsed)) return ErrorResponse(*error);
  if (const uint64_t most = EncodeBytesMax(model.engine->context_max()); parsed.text.size() > most) {
    RequestError error = BodyTooLarge(
        absl::StrCat("`content` has ", parsed.text.size(), " bytes; at most ", most, " are tokenised at once"),
        static_cast<double>(most), static_cast<double>(parsed.text.size()));
    error.param = "content";
    return ErrorResponse(error);
  }
  return JsonResponse(TokenList(model.codec->Encode(parsed.text, parsed.add_special, parsed.parse_special)));
}

HttpResponse Api::Detokenize(const ServedModel& model, const std::string& body) const {
  const RequestLimits limits{JsonLimitsOf(options_.limits, model), model.codec->vocab_size()};
  std::vector<TokenId> tokens;
  if (const auto error = ParseDetokenize(body, limits, &tokens)) return ErrorResponse(*error);
  uint64_t bytes = 0;
  for (const TokenId token : tokens) bytes += model.codec->Piece(token).size();
  if (const uint64_t most = EncodeBytesMax(model.engine->context_max()); bytes > most) {
    RequestError error =
        BodyTooLarge(absl::StrCat("`tokens` have ", bytes, " bytes of text; at most ", most, " are given at once"),
                     static_cast<double>(most), static_cast<double>(bytes));
    error.param = "tokens";
    return ErrorResponse(error);
  }
  return JsonResponse(DetokenizedBody(tokens, *model.codec));
}

HttpResponse Api::Models(std::string_view path) const {
  std::vector<ModelEntry> entries;
  for (const std::string& name : model_->names)
    entries.push_back({name, started_s_, model_->engine->context_max(), model_->codec->vocab_size()});
  if (path == kModelsPath) return JsonResponse(ModelList(entries));
  std::string name = PercentDecoded(path.substr(kModelPath.size()));
  if (const auto error = CheckModel(*model_, /*any_model=*/false, &name)) return ErrorResponse(*error);
  return JsonResponse(ModelBody(
      *std::find_if(entries.begin(), entries.end(), [&name](const ModelEntry& entry) { return entry.name == name; })));
}

}  // namespace reprise
