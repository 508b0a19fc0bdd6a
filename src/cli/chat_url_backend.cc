// A chat's backend over HTTP.
#include <chrono>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "cli/chat_backend.h"
#include "cli/http_client.h"
#include "cli/sse_reader.h"

namespace reprise {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

double MillisecondsBetween(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

// A member of an object if it is there and of the type; servers differ in what they leave out or null.
const json* Member(const json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto at = object.find(name);
  return at == object.end() || at->is_null() ? nullptr : &*at;
}

uint32_t Count(const json& object, const char* name) {
  const json* value = Member(object, name);
  return value != nullptr && value->is_number_unsigned() ? value->get<uint32_t>() : 0;
}

// One reply as it arrives.
class StreamedReply {
 public:
  explicit StreamedReply(const OnReplyText& on_text) : on_text_(on_text), start_(Clock::now()) {}

  // False: nothing more is wanted.
  bool Append(std::string_view bytes) {
    const auto events = reader_.Append(bytes);
    if (!events.ok()) error_ = events.status();
    if (!events.ok()) return false;
    for (const std::string& event : *events)
      if (!Event(event)) return false;
    return true;
  }

  absl::StatusOr<TurnStats> Finish(bool stopped) {
    if (!error_.ok()) return error_;
    if (stopped) stats_.end = "cancelled";
    if (stats_.end.empty()) return absl::UnavailableError("the server ended the stream without saying why");
    if (!stats_.counted) stats_.reply_tokens = chunks_;
    if (chunks_ > 0) stats_.first_token_ms = MillisecondsBetween(start_, first_);
    if (chunks_ > 0) stats_.decode_ms = MillisecondsBetween(first_, last_);
    return stats_;
  }

 private:
  bool Event(const std::string& data) {
    if (data == "[DONE]") return false;
    const json event = json::parse(data, nullptr, false);
    if (event.is_discarded()) error_ = absl::InternalError("the server's stream is not JSON");
    if (const json* failure = Member(event, "error")) {
      const json* message = Member(*failure, "message");
      error_ = absl::InternalError(message != nullptr && message->is_string() ? message->get<std::string>()
                                                                              : failure->dump());
    }
    if (!error_.ok()) return false;
    if (const json* usage = Member(event, "usage")) Usage(*usage);
    const json* choices = Member(event, "choices");
    if (choices == nullptr || !choices->is_array() || choices->empty()) return true;
    const json& choice = (*choices)[0];
    if (const json* reason = Member(choice, "finish_reason"); reason != nullptr && reason->is_string())
      stats_.end = reason->get<std::string>();
    const json* delta = Member(choice, "delta");
    if (delta == nullptr) return true;
    Text(*delta, "reasoning_content", true);
    Text(*delta, "content", false);
    return true;
  }

  void Text(const json& delta, const char* name, bool thought) {
    const json* text = Member(delta, name);
    if (text == nullptr || !text->is_string() || text->get_ref<const std::string&>().empty()) return;
    last_ = Clock::now();
    if (chunks_++ == 0) first_ = last_;
    on_text_(text->get_ref<const std::string&>(), thought);
  }

  void Usage(const json& usage) {
    stats_.counted = true;
    stats_.prompt_tokens = Count(usage, "prompt_tokens");
    stats_.reply_tokens = Count(usage, "completion_tokens");
    if (const json* details = Member(usage, "prompt_tokens_details"))
      stats_.reused_tokens = std::min(Count(*details, "cached_tokens"), stats_.prompt_tokens);
  }

  const OnReplyText& on_text_;
  const Clock::time_point start_;
  Clock::time_point first_, last_;
  uint32_t chunks_ = 0;
  SseReader reader_;
  TurnStats stats_;
  absl::Status error_;
};

class UrlBackend final : public ChatBackend {
 public:
  UrlBackend(std::unique_ptr<HttpClient> client, std::string url, std::string model)
      : client_(std::move(client)), url_(std::move(url)), model_(std::move(model)) {}

  absl::StatusOr<TurnStats> Reply(const std::vector<ChatTurn>& turns, const ChatSettings& settings,
                                  const OnReplyText& on_text, const std::atomic<bool>& stop) override {
    json body = {{"model", model_}, {"stream", true}, {"stream_options", {{"include_usage", true}}}};
    for (const ChatTurn& turn : turns) body["messages"].push_back({{"role", turn.role}, {"content", turn.content}});
    if (settings.temperature) body["temperature"] = *settings.temperature;
    if (settings.top_p) body["top_p"] = *settings.top_p;
    if (settings.seed) body["seed"] = *settings.seed;
    if (settings.max_tokens > 0) body["max_tokens"] = settings.max_tokens;
    StreamedReply reply(on_text);
    const absl::Status status = client_->PostStream(
        "/v1/chat/completions", body, [&](std::string_view bytes) { return reply.Append(bytes); }, stop);
    if (!status.ok()) return status;
    return reply.Finish(stop);
  }

  std::string name() const override { return absl::StrCat(model_, " at ", url_); }

 private:
  std::unique_ptr<HttpClient> client_;
  const std::string url_;
  const std::string model_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ChatBackend>> MakeUrlBackend(const std::string& url, std::string model,
                                                            const std::string& api_key) {
  const std::string base = ServerUrl(url);
  auto client = HttpClient::Connect(base, api_key);
  if (!client.ok()) return client.status();
  if (model.empty()) {
    const auto models = (*client)->Get("/v1/models");
    if (absl::IsUnauthenticated(models.status()))
      return absl::UnauthenticatedError(absl::StrCat(std::string(models.status().message()),
                                                     "; put the key into the environment variable OPENAI_API_KEY"));
    if (!models.ok())
      return absl::Status(models.status().code(),
                          absl::StrCat(std::string(models.status().message()),
                                       "; is an OpenAI-compatible server running there? `reprise "
                                       "serve MODEL.gguf` starts one"));
    const json* data = Member(*models, "data");
    if (data != nullptr && data->is_array() && !data->empty())
      if (const json* id = Member((*data)[0], "id"); id != nullptr && id->is_string()) model = id->get<std::string>();
    if (model.empty()) return absl::InternalError(absl::StrCat(url, " names no model; say which with --model NAME"));
  }
  return std::make_unique<UrlBackend>(*std::move(client), base, std::move(model));
}

}  // namespace reprise
