#include "server/response.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/text.h"

namespace reprise {
namespace {

constexpr float kLogprobMin = -9999.0f;  // OpenAI's number for "impossible": JSON has no infinity

Json Logprob(float value) { return static_cast<double>(std::isfinite(value) ? value : kLogprobMin); }

// RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF.
bool IsUtf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const auto lead = static_cast<uint8_t>(text[i]);
    const size_t more = lead < 0x80 ? 0 : lead >= 0xC2 && lead < 0xE0 ? 1 : (lead & 0xF0) == 0xE0 ? 2 : 3;
    if ((more == 0 && lead >= 0x80) || lead > 0xF4 || (more == 3 && lead < 0xF0) || i + more >= text.size()) {
      return false;
    }
    for (size_t k = 1; k <= more; ++k) {
      if (BeginsCharacter(text[i + k])) return false;
    }
    const auto second = more > 0 ? static_cast<uint8_t>(text[i + 1]) : uint8_t{0x80};
    if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second >= 0xA0) || (lead == 0xF0 && second < 0x90) ||
        (lead == 0xF4 && second >= 0x90)) {
      return false;
    }
    i += more + 1;
  }
  return true;
}

// A token's name where JSON wants a string: its text, or its bytes as OpenAI spells them.
std::string TokenName(const std::string& piece) {
  if (IsUtf8(piece)) return piece;
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string name = "bytes:";
  for (const char c : piece) {
    const auto byte = static_cast<uint8_t>(c);
    name += "\\x";
    name += kDigits[byte >> 4];
    name += kDigits[byte & 15];
  }
  return name;
}

Json ChatLogprob(TokenId token, float logprob, const TextCodec& codec) {
  const std::string piece = codec.Piece(token);
  Json bytes = Json::array();
  for (const char c : piece) bytes.push_back(static_cast<uint8_t>(c));
  return Json({{"token", piece}, {"logprob", Logprob(logprob)}, {"bytes", std::move(bytes)}});
}

Json ChatLogprobs(std::span<const GeneratedToken> tokens, const TextCodec& codec) {
  Json content = Json::array();
  for (const GeneratedToken& token : tokens) {
    Json entry = ChatLogprob(token.token, token.logprob, codec);
    Json top = Json::array();
    for (const TokenLogprob& other : token.top) top.push_back(ChatLogprob(other.token, other.logprob, codec));
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  return Json({{"content", std::move(content)}, {"refusal", nullptr}});
}

Json TextLogprobs(std::span<const GeneratedToken> tokens, uint64_t offset, bool with_top, const TextCodec& codec) {
  Json names = Json::array(), logprobs = Json::array(), tops = Json::array(), offsets = Json::array();
  for (const GeneratedToken& token : tokens) {
    const std::string piece = codec.Piece(token.token);
    names.push_back(TokenName(piece));
    logprobs.push_back(Logprob(token.logprob));
    offsets.push_back(offset);
    offset += std::count_if(piece.begin(), piece.end(), BeginsCharacter);
    Json top = Json::object();
    for (const TokenLogprob& other : token.top) {
      const std::string name = TokenName(codec.Piece(other.token));
      if (!top.contains(name)) top[name] = Logprob(other.logprob);  // of two that read alike, the likelier
    }
    tops.push_back(std::move(top));
  }
  return Json({{"tokens", std::move(names)},
               {"token_logprobs", std::move(logprobs)},
               {"top_logprobs", with_top ? std::move(tops) : Json(nullptr)},
               {"text_offset", std::move(offsets)}});
}

Json LogprobsOf(const ReplyHead& head, const ReplyPart& part, const TextCodec& codec) {
  if (!head.logprobs.has_value()) return nullptr;
  if (head.endpoint == Endpoint::kChat) return ChatLogprobs(part.tokens, codec);
  return TextLogprobs(part.tokens, part.text_offset, *head.logprobs > 0, codec);
}

Json TokenIds(std::span<const GeneratedToken> tokens) {
  Json ids = Json::array();
  for (const GeneratedToken& token : tokens) ids.push_back(token.token.value());
  return ids;
}

Json UsageOf(const Timings& timings) {
  return Json({{"prompt_tokens", timings.prompt_n},
               {"completion_tokens", timings.predicted_n},
               {"total_tokens", uint64_t{timings.prompt_n} + timings.predicted_n},
               {"prompt_tokens_details", {{"cached_tokens", timings.cached()}}}});
}

Json TimingsOf(const Timings& timings) {
  return Json({{"queue_ms", timings.queue_ms},
               {"lookup_ms", timings.lookup_ms},
               {"load_ms", timings.load_ms},
               {"load_exposed_ms", timings.load_exposed_ms},
               {"prefill_ms", timings.prefill_ms},
               {"first_token_ms", timings.first_token_ms},
               {"decode_ms", timings.decode_ms},
               {"prompt_n", timings.prompt_n},
               {"computed_n", timings.computed_n},
               {"predicted_n", timings.predicted_n},
               {"cached", {{"pool", timings.cached_pool}, {"ram", 0}, {"disk", timings.cached_disk}, {"redis", 0}}}});
}

Json Body(const ReplyHead& head, std::string_view object, Json choices) {
  return Json({{"id", head.id},
               {"object", std::string(object)},
               {"created", head.created},
               {"model", head.model},
               {"choices", std::move(choices)}});
}

Json Chunk(const ReplyHead& head, Json choices) {
  const bool chat = head.endpoint == Endpoint::kChat;
  Json body = Body(head, chat ? "chat.completion.chunk" : "text_completion", std::move(choices));
  if (head.include_usage) body["usage"] = nullptr;
  return body;
}

// The one choice of a chunk; `content` is the chat's delta or the text.
Json OneChoice(const ReplyHead& head, uint32_t index, Json content, Json logprobs, Json finish_reason) {
  Json choice;
  if (head.endpoint == Endpoint::kChat) {
    choice = {{"index", index}, {"delta", std::move(content)}};
  } else {
    choice = {{"text", std::move(content)}, {"index", index}};
  }
  choice["logprobs"] = std::move(logprobs);
  choice["finish_reason"] = std::move(finish_reason);
  return choice;
}

Json Array(Json only) {
  Json array = Json::array();
  array.push_back(std::move(only));
  return array;
}

void AddEnd(const ReplyHead& head, const Timings& timings, const Json& receipt, Json& body) {
  body["timings"] = TimingsOf(timings);
  body["seed"] = head.seed;
  if (!receipt.is_null()) body["prefix_cache_receipt"] = receipt;
  if (!head.truncation.has_value()) return;
  body["truncation"] = {{"dropped_messages", head.truncation->dropped_messages},
                        {"dropped_tokens", head.truncation->dropped_tokens},
                        {"prompt_tokens_before", head.truncation->prompt_tokens_before}};
}

// A delta's tool call has its index; with the id, which only the first one has, come type and name.
Json ToolCallOf(const ToolCallDelta& call, bool with_index) {
  Json out = Json::object();
  if (with_index) out["index"] = call.index;
  if (!call.id.empty() || !call.name.empty()) {
    out["id"] = call.id;
    out["type"] = "function";
    out["function"] = {{"name", call.name}, {"arguments", call.arguments}};
  } else {
    out["function"] = {{"arguments", call.arguments}};
  }
  return out;
}

Json ToolCallsOf(std::span<const ToolCallDelta> calls, bool with_index) {
  Json out = Json::array();
  for (const ToolCallDelta& call : calls) out.push_back(ToolCallOf(call, with_index));
  return out;
}

Json MessageOf(const ReplyPart& all) {
  Json message = {{"role", "assistant"}, {"content", all.text}, {"refusal", nullptr}};
  if (all.text.empty() && !all.tool_calls.empty()) message["content"] = nullptr;
  if (!all.reasoning.empty()) message["reasoning_content"] = all.reasoning;
  if (!all.tool_calls.empty()) message["tool_calls"] = ToolCallsOf(all.tool_calls, /*with_index=*/false);
  return message;
}

Json DeltaOf(const ReplyPart& part) {
  Json delta = Json::object();
  if (!part.reasoning.empty()) delta["reasoning_content"] = part.reasoning;
  // A chunk with nothing but log-probabilities has an empty content, so that readers find one.
  if (!part.text.empty() || (part.reasoning.empty() && part.tool_calls.empty())) delta["content"] = part.text;
  if (!part.tool_calls.empty()) delta["tool_calls"] = ToolCallsOf(part.tool_calls, /*with_index=*/true);
  return delta;
}

Json WholeChoiceOf(const ReplyHead& head, const WholeChoice& whole, const TextCodec& codec) {
  const ReplyPart& all = whole.all;
  Json choice;
  if (head.endpoint == Endpoint::kChat) {
    choice = {{"index", all.choice}, {"message", MessageOf(all)}};
  } else {
    choice = {{"text", all.text}, {"index", all.choice}};
  }
  choice["logprobs"] = LogprobsOf(head, all, codec);
  choice["finish_reason"] = std::string(whole.finish);
  if (head.return_tokens) choice["tokens"] = TokenIds(all.tokens);
  return choice;
}

Json ModelOf(const ModelEntry& model) {
  return Json({{"id", model.name},
               {"object", "model"},
               {"created", model.created},
               {"owned_by", "reprise"},
               {"meta", {{"n_ctx", model.context_max}, {"n_vocab", model.vocab_size}}}});
}

}  // namespace

void Join(ChatDelta delta, ReplyPart& part) {
  part.text += delta.content;
  part.reasoning += delta.reasoning;
  for (ToolCallDelta& call : delta.tool_calls) {
    const auto same = std::find_if(part.tool_calls.begin(), part.tool_calls.end(),
                                   [&call](const ToolCallDelta& other) { return other.index == call.index; });
    if (same == part.tool_calls.end()) {
      part.tool_calls.push_back(std::move(call));
      continue;
    }
    same->id += call.id;
    same->name += call.name;
    same->arguments += call.arguments;
  }
}

std::string_view FinishName(FinishReason reason, bool called_tools) {
  CHECK(reason == FinishReason::kStop || reason == FinishReason::kLength);
  if (reason == FinishReason::kLength) return "length";
  return called_tools ? "tool_calls" : "stop";
}

Timings Together(std::span<const Timings> choices) {
  Timings all = choices.front();
  for (const Timings& other : choices.subspan(1)) {
    all.predicted_n += other.predicted_n;
    all.decode_ms = std::max(all.decode_ms, other.decode_ms);
  }
  return all;
}

uint64_t CountCharacters(const TextCodec& codec, std::span<const GeneratedToken> tokens) {
  uint64_t count = 0;
  for (const GeneratedToken& token : tokens) {
    const std::string piece = codec.Piece(token.token);
    count += std::count_if(piece.begin(), piece.end(), BeginsCharacter);
  }
  return count;
}

std::string WholeReply(const ReplyHead& head, std::span<const WholeChoice> choices, const Timings& timings,
                       const TextCodec& codec, const Json& receipt) {
  const bool chat = head.endpoint == Endpoint::kChat;
  Json all = Json::array();
  for (const WholeChoice& choice : choices) all.push_back(WholeChoiceOf(head, choice, codec));
  Json body = Body(head, chat ? "chat.completion" : "text_completion", std::move(all));
  body["usage"] = UsageOf(timings);
  AddEnd(head, timings, receipt, body);
  return Dump(body);
}

std::string RoleChunk(const ReplyHead& head, uint32_t choice) {
  CHECK(head.endpoint == Endpoint::kChat);
  Json delta = {{"role", "assistant"}, {"content", ""}, {"refusal", nullptr}};
  return Dump(Chunk(head, Array(OneChoice(head, choice, std::move(delta), nullptr, nullptr))));
}

std::string PartChunk(const ReplyHead& head, const ReplyPart& part, const TextCodec& codec) {
  Json content = head.endpoint == Endpoint::kChat ? DeltaOf(part) : Json(part.text);
  Json choice = OneChoice(head, part.choice, std::move(content), LogprobsOf(head, part, codec), nullptr);
  if (head.return_tokens) choice["tokens"] = TokenIds(part.tokens);
  return Dump(Chunk(head, Array(std::move(choice))));
}

std::string EndChunk(const ReplyHead& head, uint32_t choice, std::string_view finish, const Timings* timings,
                     const Json& receipt) {
  Json content = head.endpoint == Endpoint::kChat ? Json::object() : Json("");
  Json body = Chunk(head, Array(OneChoice(head, choice, std::move(content), nullptr, std::string(finish))));
  if (timings != nullptr) AddEnd(head, *timings, receipt, body);
  return Dump(body);
}

std::string UsageChunk(const ReplyHead& head, const Timings& timings, const Json& receipt) {
  Json body = Chunk(head, Json::array());
  body["usage"] = UsageOf(timings);
  AddEnd(head, timings, receipt, body);
  return Dump(body);
}

std::string ModelBody(const ModelEntry& model) { return Dump(ModelOf(model)); }

std::string ModelList(std::span<const ModelEntry> models) {
  Json data = Json::array();
  for (const ModelEntry& model : models) data.push_back(ModelOf(model));
  return Dump(Json({{"object", "list"}, {"data", std::move(data)}}));
}

std::string TokenList(std::span<const TokenId> tokens) {
  Json ids = Json::array();
  for (const TokenId token : tokens) ids.push_back(token.value());
  return Dump(Json({{"tokens", std::move(ids)}}));
}

std::string DetokenizedBody(std::span<const TokenId> tokens, const TextCodec& codec) {
  std::string text;
  for (const TokenId token : tokens) text += codec.Piece(token);
  return Dump(Json({{"content", std::move(text)}}));
}

}  // namespace reprise
