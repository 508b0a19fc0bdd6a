#include "server/completion_job.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/prefix_ids.h"
#include "server/request_log.h"

namespace reprise {
namespace {

constexpr size_t kNameBytesShown = 128;  // of what a client made up, in messages

RequestError TooManyLargeRequests(const ServerLimits& limits) {
  return QueueFull("too many large requests are being answered; come again in a second",
                   static_cast<double>(limits.bodies_bytes_max), 1);
}

}  // namespace

uint64_t JsonValuesMax(uint32_t context_max) { return 4 * uint64_t{context_max} + 4096; }

JsonLimits JsonLimitsOf(const ServerLimits& limits, const ServedModel& model) {
  return {.depth_max = limits.json_depth_max, .values_max = JsonValuesMax(model.engine->context_max())};
}

MaybeError CheckModel(const ServedModel& model, bool any_model, std::string* name) {
  if (name->empty()) *name = model.names.front();
  if (any_model || std::find(model.names.begin(), model.names.end(), *name) != model.names.end()) return std::nullopt;
  RequestError error =
      InvalidValue("model", absl::StrCat("the model `", name->substr(0, kNameBytesShown),
                                         "` is not served here; served: ", absl::StrJoin(model.names, ", ")));
  error.http_status = 404;
  error.code = "model_not_found";
  return error;
}

MaybeError CompletionJob::Prepare(const ApiOptions& options, const std::shared_ptr<BodyBudget>& grammars) {
  const TextCodec& codec = *model->codec;
  const RequestLimits limits{JsonLimitsOf(options.limits, *model), codec.vocab_size(), model->engine->adapters()};
  if (auto why = ParseCompletion(endpoint, http.body, limits, &request)) return why;
  if (auto why = CheckModel(*model, options.any_model, &request.model)) return why;
  http.body = std::string();
  if (request.echo || options.log_prompts) {
    echo = request.prompt_text;
    for (const TokenId token : request.prompt_tokens) echo += codec.Piece(token);
  }
  if (auto why = ChargeEcho(options.limits)) return why;
  http = HttpRequest();  // gives its memory back
  if (auto why = BuildPrompt(endpoint, request, codec, model->engine->context_max(), &prompt)) return why;
  if (auto why = ChargeGrammar(options.limits, grammars)) return why;
  if (options.log_prompts) LogPrompt(id, endpoint == Endpoint::kChat ? prompt.chat.text : echo);
  if (!request.echo) echo = std::string();
  MakeReceipt();
  MakeGeneration();
  if (options.trace_key) prefix_ids = PrefixIds(*options.trace_key, generation.scope, generation.prompt);
  return std::nullopt;
}

MaybeError CompletionJob::PrepareToExplain(const ApiOptions& options) {
  const TextCodec& codec = *model->codec;
  const RequestLimits limits{JsonLimitsOf(options.limits, *model), codec.vocab_size(), model->engine->adapters()};
  if (auto why = ParseEitherCompletion(http.body, limits, &endpoint, &request)) return why;
  if (auto why = CheckModel(*model, options.any_model, &request.model)) return why;
  // The messages stay until the answer is there, and their text a second time, in the prompt.
  const uint64_t body_bytes = http.body.size();
  charges.push_back(std::move(http.charge));
  http = HttpRequest();
  if (auto why = BuildPrompt(endpoint, request, codec, model->engine->context_max(), &prompt)) return why;
  prompt.chat.grammar = nullptr;  // as large as a schema lets it be, and of no use
  prompt.chat.format = nullptr;
  const uint64_t prompt_bytes = prompt.chat.text.size() + prompt.tokens.size() * sizeof(TokenId);
  if (!charges.back().RaiseTo(body_bytes + prompt_bytes)) return TooManyLargeRequests(options.limits);
  MakeReceipt();
  MakeGeneration();
  return CheckLength();
}

void CompletionJob::GiveBack() {
  charges.clear();
  http = HttpRequest();
}

MaybeError CompletionJob::ChargeEcho(const ServerLimits& limits) {
  if (!request.echo) return std::nullopt;
  // Every choice has the prompt's text.
  if (!http.charge.RaiseTo(request.n * echo.size())) return TooManyLargeRequests(limits);
  charges.push_back(std::move(http.charge));
  return std::nullopt;
}

MaybeError CompletionJob::ChargeGrammar(const ServerLimits& limits, const std::shared_ptr<BodyBudget>& grammars) {
  const uint64_t bytes = model->codec->GrammarBytes(prompt.chat);
  if (bytes == 0 || BodyBudget::Raise(grammars, bytes, charges.emplace_back())) return std::nullopt;
  return QueueFull("too many requests with large schemas or tools are running; come again in a second",
                   static_cast<double>(limits.grammars_bytes_max), 1);
}

MaybeError CompletionJob::CheckLength() const {
  const uint64_t limit = model->engine->context_max();
  const uint64_t reply = std::max<uint64_t>(generation.max_tokens, 1);
  const uint64_t needs = generation.prompt.size() + reply;
  if (needs <= limit) return std::nullopt;
  RequestError error =
      InvalidValue(generation.prompt_param,
                   absl::StrCat("the prompt has ", generation.prompt.size(), " tokens and the reply up to ", reply,
                                "; the context has ", limit, ": shorten the prompt, or start with a larger --context"),
                   static_cast<double>(limit), static_cast<double>(needs));
  error.code = "context_too_long";
  return error;
}

void CompletionJob::MakeGeneration() {
  generation.prompt = std::move(prompt.tokens);
  generation.prompt_param = endpoint == Endpoint::kChat ? "messages" : "prompt";
  generation.max_tokens = request.max_tokens.value_or(0);
  generation.sampling = request.sampling;
  generation.logit_bias = std::move(request.logit_bias);
  generation.grammar = std::move(prompt.chat.grammar);
  generation.written_tokens = std::move(prompt.chat.written_tokens);
  generation.stop = std::move(request.stop);
  generation.stop.insert(generation.stop.end(), prompt.chat.stop.begin(), prompt.chat.stop.end());
  generation.adapters = std::move(request.adapters);
  generation.ignore_eos = request.ignore_eos;
  generation.logprobs = request.logprobs;
  generation.cache_read = request.cache_read;
  generation.cache_write = request.cache_write;
  generation.receipt = request.receipt;
  generation.scope = {.tenant = tenant, .epoch = 0, .salt = std::move(request.salt)};
}

void CompletionJob::MakeReceipt() {
  receipt.identity = &model->engine->identity();
  receipt.tenant = tenant;
  receipt.cache_read = request.cache_read;
  const std::span<const AdapterInfo> loaded = model->engine->adapters();
  for (const AdapterUse& use : AdaptersOf(loaded, request.adapters))
    receipt.adapters.push_back({{"name", loaded[use.adapter].name},
                                {"revision", absl::StrCat("sha256:", loaded[use.adapter].content.Hex())},
                                {"scale", use.scale}});
  if (endpoint == Endpoint::kChat) receipt.system_prompt = SystemPromptDigest(request.chat.messages);
}

}  // namespace reprise
