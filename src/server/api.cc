#include "server/api.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "server/reply.h"

namespace reprise {
namespace {

constexpr uint64_t kSeedMask = (uint64_t{1} << 53) - 1;  // exact in every JSON reader's double

constexpr std::string_view kChatPath = "/v1/chat/completions";
constexpr std::string_view kTextPath = "/v1/completions";
constexpr std::string_view kModelsPath = "/v1/models";
constexpr std::string_view kTokenizePath = "/tokenize";
constexpr std::string_view kHealthPath = "/health";
constexpr std::string_view kReadyPath = "/ready";

struct Route {
  std::string_view path;
  std::string_view method;
};
constexpr Route kRoutes[] = {{kChatPath, "POST"},     {kTextPath, "POST"},  {kModelsPath, "GET"},
                             {kTokenizePath, "POST"}, {kHealthPath, "GET"}, {kReadyPath, "GET"}};

int64_t NowSeconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

HttpResponse JsonResponse(std::string body) {
  HttpResponse response;
  response.body = std::move(body);
  return response;
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

JsonLimits JsonLimitsOf(const ServerLimits& limits, const ServedModel& model) {
  return {.depth_max = limits.json_depth_max, .values_max = JsonValuesMax(model.engine->context_max())};
}

MaybeError CheckModel(const ServedModel& model, bool any_model, std::string* name) {
  if (name->empty()) *name = model.names.front();
  if (any_model || std::find(model.names.begin(), model.names.end(), *name) != model.names.end()) return std::nullopt;
  RequestError error = InvalidValue(
      "model", absl::StrCat("the model `", *name, "` is not served here; served: ", absl::StrJoin(model.names, ", ")));
  error.http_status = 404;
  error.code = "model_not_found";
  return error;
}

MaybeError PromptOf(const TextCodec& codec, const std::vector<ChatMessage>& messages, std::string* out) {
  absl::StatusOr<std::string> prompt = codec.RenderChat(messages);
  if (prompt.ok()) {
    *out = *std::move(prompt);
    return std::nullopt;
  }
  std::string why(prompt.status().message());
  RequestError error = InvalidValue("messages", absl::StrCat("the model's chat template refused the messages: ", why));
  if (prompt.status().code() == absl::StatusCode::kFailedPrecondition) {
    error.code = "unsupported";
    error.message = std::move(why);
  }
  return error;
}

}  // namespace

uint64_t JsonValuesMax(uint32_t context_max) { return 4 * uint64_t{context_max} + 4096; }

// A completion on its way from bytes to the engine.
struct Api::Job {
  Endpoint endpoint;
  HttpRequest http;
  std::shared_ptr<HttpExchange> exchange;
  std::shared_ptr<const ServedModel> model;
  CompletionRequest request;
  GenerationRequest generation;
  MaybeError error;

  // On a request thread.
  MaybeError Prepare(const ApiOptions& options);
};

MaybeError Api::Job::Prepare(const ApiOptions& options) {
  const TextCodec& codec = *model->codec;
  const RequestLimits limits{JsonLimitsOf(options.limits, *model), codec.vocab_size()};
  if (auto why = ParseCompletion(endpoint, http.body, limits, &request)) return why;
  if (auto why = CheckModel(*model, options.any_model, &request.model)) return why;
  http = HttpRequest();  // gives its memory back

  if (endpoint == Endpoint::kChat) {
    generation.prompt_param = "messages";
    if (auto why = PromptOf(codec, request.messages, &request.prompt_text)) return why;
  }
  generation.prompt = request.prompt_tokens.empty()
                          ? codec.Encode(request.prompt_text, /*add_special=*/true, /*parse_special=*/true)
                          : std::move(request.prompt_tokens);
  if (generation.prompt.empty()) {
    return InvalidValue(generation.prompt_param, absl::StrCat("`", generation.prompt_param, "` has no tokens"), 1, 0);
  }
  generation.max_tokens = request.max_tokens.value_or(0);
  generation.sampling = request.sampling;
  generation.stop = std::move(request.stop);
  generation.ignore_eos = request.ignore_eos;
  generation.logprobs = request.logprobs;
  generation.cache_read = request.cache_read;
  generation.cache_write = request.cache_write;
  generation.scope = {.tenant = "default", .epoch = 0, .salt = std::move(request.salt)};
  return std::nullopt;
}

Api::Api(const ApiOptions& options)
    : options_(options),
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

MaybeError Api::NotServing() const {
  if (draining_) return ShuttingDown();
  if (model_ == nullptr) return Loading();
  return std::nullopt;
}

void Api::Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  const auto* const route =
      std::find_if(std::begin(kRoutes), std::end(kRoutes), [&](const Route& r) { return r.path == request.path; });
  if (route == std::end(kRoutes)) return exchange->Reply(NoSuchPath(request.path));
  const bool method_fits = route->method == request.method || (route->method == "GET" && request.method == "HEAD");
  if (!method_fits) return exchange->Reply(WrongMethod(request, route->method));

  if (route->path == kHealthPath) return exchange->Reply(JsonResponse(R"({"status":"ok"})"));
  if (const auto why = NotServing()) return exchange->Reply(ErrorResponse(*why));
  if (route->path == kReadyPath) return exchange->Reply(JsonResponse(R"({"status":"ready"})"));
  if (route->path == kModelsPath) return exchange->Reply(JsonResponse(ModelList(model_->names, started_s_)));
  if (route->path == kTokenizePath) return Tokenize(std::move(request), std::move(exchange));
  Complete(route->path == kChatPath ? Endpoint::kChat : Endpoint::kText, std::move(request), std::move(exchange));
}

void Api::Complete(Endpoint endpoint, HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  if (*active_ >= options_.limits.requests_max) {
    return exchange->Reply(ErrorResponse(
        QueueFull(absl::StrCat("the server has ", options_.limits.requests_max, " requests in work or waiting"),
                  options_.limits.requests_max, 1)));
  }
  auto job = std::make_shared<Job>();
  job->endpoint = endpoint;
  job->http = std::move(request);
  job->exchange = std::move(exchange);
  job->model = model_;
  threads_.Run([this, job = std::move(job)] {
    job->error = job->Prepare(options_);
    queue_->Post([this, job] { Start(job); });
  });
}

void Api::Start(std::shared_ptr<Job> job) {
  HttpExchange& exchange = *job->exchange;
  if (exchange.gone()) return;
  if (job->error) return exchange.Reply(ErrorResponse(*job->error));
  if (draining_) return exchange.Reply(ErrorResponse(ShuttingDown()));

  CompletionRequest& request = job->request;
  job->generation.sampling.seed = request.seed.value_or(NextRandom() & kSeedMask);
  ReplyOptions options;
  options.stream = request.stream;
  options.head = {
      .endpoint = job->endpoint,
      .id = absl::StrCat(job->endpoint == Endpoint::kChat ? "chatcmpl-" : "cmpl-",
                         absl::Hex(NextRandom(), absl::kZeroPad16), absl::Hex(NextRandom(), absl::kZeroPad16)),
      .model = std::move(request.model),
      .created = NowSeconds(),
      .seed = job->generation.sampling.seed,
      .include_usage = request.stream && request.include_usage,
      .return_tokens = request.return_tokens,
      .logprobs = request.logprobs};
  ++*active_;
  const auto reply = std::make_shared<Reply>(std::move(options), job->exchange, *job->model->engine, *job->model->codec,
                                             [active = active_] { --*active; });
  reply->Submit(std::move(job->generation), queue_);
}

void Api::Tokenize(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  // A shared_ptr, because a std::function must be copyable and a request is not.
  auto shared = std::make_shared<HttpRequest>(std::move(request));
  threads_.Run([this, shared, exchange = std::move(exchange), model = model_] {
    const RequestLimits limits{JsonLimitsOf(options_.limits, *model), model->codec->vocab_size()};
    TokenizeRequest parsed;
    HttpResponse response;
    if (const auto error = ParseTokenize(shared->body, limits, &parsed)) {
      response = ErrorResponse(*error);
    } else {
      response = JsonResponse(TokenList(model->codec->Encode(parsed.text, parsed.add_special, parsed.parse_special)));
    }
    queue_->Post([exchange, response = std::move(response)] { exchange->Reply(response); });
  });
}

}  // namespace reprise
