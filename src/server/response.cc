#include "server/response.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "server/json.h"

namespace reprise {
namespace {

constexpr float kLogprobMin = -9999.0f;  // OpenAI's number for "impossible": JSON has no infinity

Json Logprob(float value) { return static_cast<double>(std::isfinite(value) ? value : kLogprobMin); }

bool BeginsCharacter(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) != 0x80; }

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
               {"prompt_tokens_details",
                {{"cached_tokens", timings.prompt_n - std::min(timings.computed_n, timings.prompt_n)}}}});
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
               {"cached", {{"pool", timings.cached_pool}, {"ram", 0}, {"disk", 0}, {"redis", 0}}}});
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
Json OneChoice(const ReplyHead& head, Json content, Json logprobs, Json finish_reason) {
  Json choice;
  if (head.endpoint == Endpoint::kChat) {
    choice = {{"index", 0}, {"delta", std::move(content)}};
  } else {
    choice = {{"text", std::move(content)}, {"index", 0}};
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

void AddEnd(const ReplyHead& head, const Timings& timings, Json& body) {
  body["timings"] = TimingsOf(timings);
  body["seed"] = head.seed;
}

}  // namespace

std::string_view FinishName(FinishReason reason) {
  CHECK(reason == FinishReason::kStop || reason == FinishReason::kLength);
  return reason == FinishReason::kStop ? "stop" : "length";
}

uint64_t CountCharacters(const TextCodec& codec, std::span<const GeneratedToken> tokens) {
  uint64_t count = 0;
  for (const GeneratedToken& token : tokens) {
    const std::string piece = codec.Piece(token.token);
    count += std::count_if(piece.begin(), piece.end(), BeginsCharacter);
  }
  return count;
}

std::string WholeReply(const ReplyHead& head, const ReplyPart& all, FinishReason reason, const Timings& timings,
                       const TextCodec& codec) {
  const bool chat = head.endpoint == Endpoint::kChat;
  Json choice;
  if (chat) {
    choice = {{"index", 0}, {"message", {{"role", "assistant"}, {"content", all.text}, {"refusal", nullptr}}}};
  } else {
    choice = {{"text", all.text}, {"index", 0}};
  }
  choice["logprobs"] = LogprobsOf(head, all, codec);
  choice["finish_reason"] = std::string(FinishName(reason));
  if (head.return_tokens) choice["tokens"] = TokenIds(all.tokens);
  Json body = Body(head, chat ? "chat.completion" : "text_completion", Array(std::move(choice)));
  body["usage"] = UsageOf(timings);
  AddEnd(head, timings, body);
  return Dump(body);
}

std::string RoleChunk(const ReplyHead& head) {
  CHECK(head.endpoint == Endpoint::kChat);
  Json delta = {{"role", "assistant"}, {"content", ""}, {"refusal", nullptr}};
  return Dump(Chunk(head, Array(OneChoice(head, std::move(delta), nullptr, nullptr))));
}

std::string PartChunk(const ReplyHead& head, const ReplyPart& part, const TextCodec& codec) {
  Json content = part.text;
  if (head.endpoint == Endpoint::kChat) content = Json({{"content", part.text}});
  Json choice = OneChoice(head, std::move(content), LogprobsOf(head, part, codec), nullptr);
  if (head.return_tokens) choice["tokens"] = TokenIds(part.tokens);
  return Dump(Chunk(head, Array(std::move(choice))));
}

std::string EndChunk(const ReplyHead& head, FinishReason reason, const Timings& timings) {
  Json content = head.endpoint == Endpoint::kChat ? Json::object() : Json("");
  Json body = Chunk(head, Array(OneChoice(head, std::move(content), nullptr, std::string(FinishName(reason)))));
  if (!head.include_usage) AddEnd(head, timings, body);
  return Dump(body);
}

std::string UsageChunk(const ReplyHead& head, const Timings& timings) {
  Json body = Chunk(head, Json::array());
  body["usage"] = UsageOf(timings);
  AddEnd(head, timings, body);
  return Dump(body);
}

std::string ModelList(std::span<const std::string> names, int64_t created) {
  Json data = Json::array();
  for (const std::string& name : names) {
    data.push_back(Json({{"id", name}, {"object", "model"}, {"created", created}, {"owned_by", "reprise"}}));
  }
  return Dump(Json({{"object", "list"}, {"data", std::move(data)}}));
}

std::string TokenList(std::span<const TokenId> tokens) {
  Json ids = Json::array();
  for (const TokenId token : tokens) ids.push_back(token.value());
  return Dump(Json({{"tokens", std::move(ids)}}));
}

}  // namespace reprise
