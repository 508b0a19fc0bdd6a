#include "server/prompt_builder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace reprise {
namespace {

constexpr uint32_t kReplyShare = 4;  // truncation without max_tokens keeps a quarter of the context for the reply

constexpr size_t kPartBytes = 64 << 10;   // tokens are counted by parts of this size
constexpr size_t kSpaceWithin = 1 << 10;  // of whose end a space is looked for

// Bytes of the first part of `text`, at most `bytes`: before a space if there is one, else before a character.
size_t PartBytes(std::string_view text, size_t bytes) {
  if (text.size() <= bytes) return text.size();
  const size_t space = text.substr(0, bytes).find_last_of(" \n");
  if (space != std::string_view::npos && space > 0 && bytes - space < kSpaceWithin) return space;
  while (bytes > 1 && !BeginsCharacter(text[bytes])) --bytes;
  return bytes;
}

// Tokens that a truncated prompt may have.
uint64_t PromptTokensMax(const CompletionRequest& request, uint32_t context_max) {
  const uint64_t reply = request.max_tokens.value_or(context_max / kReplyShare);
  return reply < context_max ? context_max - reply : 0;
}

// A template may say more about fewer messages.
uint32_t Fewer(uint32_t before, size_t after) { return after < before ? before - static_cast<uint32_t>(after) : 0; }

RequestError CannotFollow(const absl::Status& why) {
  return InvalidValue("response_format", absl::StrCat("`response_format` has a schema that cannot be followed: ",
                                                      std::string(why.message())));
}

// The template and the schemas are compiled in one go; which of them failed is found out only then.
RequestError WhyNoPrompt(const CompletionRequest& request, const TextCodec& codec, const absl::Status& status) {
  const std::string why(status.message());
  if (status.code() == absl::StatusCode::kFailedPrecondition) {
    RequestError error = InvalidValue("messages", why);
    error.code = "unsupported";
    return error;
  }
  if (!request.json_schema.empty()) {
    if (const auto grammar = codec.CompileSchema(request.json_schema); !grammar.ok()) {
      return CannotFollow(grammar.status());
    }
  }
  for (size_t i = 0; i < request.chat.tools.size(); ++i) {
    if (request.chat.tools[i].parameters.empty()) continue;
    if (const auto grammar = codec.CompileSchema(request.chat.tools[i].parameters); !grammar.ok()) {
      const std::string param = absl::StrCat("tools[", i, "].function.parameters");
      return InvalidValue(
          param,
          absl::StrCat("`", param, "` is a schema that cannot be followed: ", std::string(grammar.status().message())));
    }
  }
  // The template names the field where it is not the messages.
  for (const char* field : {"tool_choice", "chat_template_kwargs"}) {
    if (std::string_view(why).starts_with(field)) return InvalidValue(field, why);
  }
  return InvalidValue("messages", why);
}

// A text as tokens; too long for that: only their number.
struct Encoded {
  std::vector<TokenId> tokens;
  uint64_t count = 0;
};
Encoded EncodeBounded(const TextCodec& codec, std::string_view text, uint32_t context_max, uint64_t enough) {
  Encoded out;
  if (text.size() > EncodeBytesMax(context_max)) {
    out.count = CountTokens(codec, text, enough);
  } else {
    out.tokens = codec.Encode(text, /*add_special=*/true, /*parse_special=*/true);
    out.count = out.tokens.size();
  }
  return out;
}

// `count`: of the part of the prompt that was looked at.
RequestError FarTooLong(const std::string& param, uint64_t text_bytes, uint64_t count, uint32_t context_max) {
  if (count > context_max) {
    RequestError error =
        InvalidValue(param,
                     absl::StrCat("the prompt has more than ", count - 1, " tokens; the context has ", context_max,
                                  ": shorten the prompt, or start with a larger --context"),
                     context_max, static_cast<double>(count));
    error.code = "context_too_long";
    return error;
  }
  const uint64_t most = EncodeBytesMax(context_max);
  RequestError error = BodyTooLarge(absl::StrCat("the prompt has ", text_bytes, " bytes of text; a context of ",
                                                 context_max, " tokens takes at most ", most),
                                    static_cast<double>(most), static_cast<double>(text_bytes));
  error.param = param;
  return error;
}

// A conversation's prompt.
struct Rendered {
  ChatPrompt chat;
  Encoded encoded;
};
absl::StatusOr<Rendered> Render(const ChatRequest& chat, const TextCodec& codec, uint32_t context_max,
                                uint64_t enough) {
  absl::StatusOr<ChatPrompt> prompt = codec.Prompt(chat);
  if (!prompt.ok()) return prompt.status();
  Rendered out{*std::move(prompt), {}};
  out.encoded = EncodeBounded(codec, out.chat.text, context_max, enough);
  return out;
}

// Leaves out as few groups as make the prompt fit, all of them if none do.
class MiddleDropper {
 public:
  MiddleDropper(const ChatRequest& chat, bool keep_system, const TextCodec& codec, uint32_t context_max)
      : chat_(chat), codec_(codec), context_max_(context_max), groups_(DroppableGroups(chat.messages, keep_system)) {}

  absl::StatusOr<Rendered> Fit(uint64_t tokens_max, uint32_t* dropped_messages) {
    size_t low = FewestByTexts(tokens_max), high = groups_.size();
    absl::StatusOr<Rendered> best = Without(high);
    if (!best.ok() || best->encoded.count > tokens_max) {
      low = high;
    } else if (low > 0) {
      // A template may leave out what messages hold, such as the thoughts of old turns; then the bound is none.
      absl::StatusOr<Rendered> tried = Without(low - 1);
      if (!tried.ok()) return tried;
      if (tried->encoded.count <= tokens_max) {
        high = std::exchange(low, 0) - 1;
        best = std::move(tried);
      }
    }
    while (low < high) {
      const size_t middle = low + (high - low) / 2;
      absl::StatusOr<Rendered> tried = Without(middle);
      if (!tried.ok()) return tried;
      if (tried->encoded.count > tokens_max) {
        low = middle + 1;
      } else {
        high = middle;
        best = std::move(tried);
      }
    }
    *dropped_messages = 0;
    for (size_t i = 0; i < high; ++i) *dropped_messages += static_cast<uint32_t>(groups_[i].size());
    return best;
  }

 private:
  absl::StatusOr<Rendered> Without(size_t dropped) const {
    std::vector<bool> left_out(chat_.messages.size());
    for (size_t i = 0; i < dropped; ++i) {
      for (const size_t index : groups_[i]) left_out[index] = true;
    }
    ChatRequest shorter = chat_;
    shorter.messages.clear();
    for (size_t i = 0; i < chat_.messages.size(); ++i) {
      if (!left_out[i]) shorter.messages.push_back(chat_.messages[i]);
    }
    return Render(shorter, codec_, context_max_, context_max_);
  }
  // A bound from below by the messages' own texts, where the template has all of them in the prompt; it costs one
  // tokenisation of what may stay and saves many of what may not.
  size_t FewestByTexts(uint64_t tokens_max) const {
    uint64_t tokens = 0;
    size_t kept_from = groups_.size();
    while (kept_from > 0) {
      for (const size_t index : groups_[kept_from - 1]) {
        tokens += CountTokens(codec_, chat_.messages[index].content, tokens_max);
      }
      if (tokens > tokens_max) break;
      --kept_from;
    }
    return kept_from;
  }

  const ChatRequest& chat_;
  const TextCodec& codec_;
  const uint32_t context_max_;
  const std::vector<std::vector<size_t>> groups_;
};

MaybeError BuildChat(CompletionRequest& request, const TextCodec& codec, uint32_t context_max, BuiltPrompt* out) {
  request.chat.json_schema = request.json_schema;
  const uint64_t enough = request.truncation.has_value() ? UINT64_MAX : context_max;
  absl::StatusOr<Rendered> rendered = Render(request.chat, codec, context_max, enough);
  if (!rendered.ok()) return WhyNoPrompt(request, codec, rendered.status());
  if (request.truncation.has_value()) {
    TruncationReport& report = out->truncation.emplace();
    report.prompt_tokens_before = static_cast<uint32_t>(rendered->encoded.count);
    const uint64_t tokens_max = PromptTokensMax(request, context_max);
    if (rendered->encoded.count > tokens_max && tokens_max > 0) {
      MiddleDropper dropper(request.chat, request.truncation->keep_system, codec, context_max);
      rendered = dropper.Fit(tokens_max, &report.dropped_messages);
      if (!rendered.ok()) return WhyNoPrompt(request, codec, rendered.status());
    }
    report.dropped_tokens = Fewer(report.prompt_tokens_before, rendered->encoded.count);
  }
  if (rendered->encoded.tokens.empty() && rendered->encoded.count > 0) {
    return FarTooLong("messages", rendered->chat.text.size(), rendered->encoded.count, context_max);
  }
  out->tokens = std::move(rendered->encoded.tokens);
  out->chat = std::move(rendered->chat);
  return std::nullopt;
}

// The tokens of both ends of a text, of `bytes` together: the middle is going to be left out anyway.
std::vector<TokenId> EncodeEnds(const TextCodec& codec, std::string_view text, uint64_t bytes) {
  const size_t head = PartBytes(text, bytes / 2);
  size_t tail = text.size() - bytes / 2;
  while (tail < text.size() && !BeginsCharacter(text[tail])) ++tail;
  std::vector<TokenId> tokens = codec.Encode(text.substr(0, head), /*add_special=*/true, /*parse_special=*/true);
  const std::vector<TokenId> rest = codec.Encode(text.substr(tail), /*add_special=*/false, /*parse_special=*/true);
  tokens.insert(tokens.end(), rest.begin(), rest.end());
  return tokens;
}

MaybeError BuildText(CompletionRequest& request, const TextCodec& codec, uint32_t context_max, BuiltPrompt* out) {
  if (!request.json_schema.empty()) {
    auto grammar = codec.CompileSchema(request.json_schema);
    if (!grammar.ok()) return CannotFollow(grammar.status());
    out->chat.grammar = *std::move(grammar);
  }
  std::vector<TokenId>& tokens = out->tokens;
  uint64_t count = request.prompt_tokens.size();
  if (count > 0) {
    tokens = std::move(request.prompt_tokens);
  } else {
    const bool truncate = request.truncation.has_value();
    Encoded encoded = EncodeBounded(codec, request.prompt_text, context_max, truncate ? UINT64_MAX : context_max);
    count = encoded.count;
    tokens = std::move(encoded.tokens);
    if (tokens.empty() && count > 0) {
      if (!truncate) return FarTooLong("prompt", request.prompt_text.size(), count, context_max);
      tokens = EncodeEnds(codec, request.prompt_text, EncodeBytesMax(context_max));
    }
  }
  if (!request.truncation.has_value()) return std::nullopt;
  TruncationReport& report = out->truncation.emplace();
  report.prompt_tokens_before = static_cast<uint32_t>(count);
  const uint64_t tokens_max = PromptTokensMax(request, context_max);
  if (tokens.size() > tokens_max && tokens_max > 0) {
    const auto head = tokens.begin() + static_cast<ptrdiff_t>(tokens_max - tokens_max / 2);
    tokens.erase(head, tokens.end() - static_cast<ptrdiff_t>(tokens_max / 2));
  }
  report.dropped_tokens = Fewer(report.prompt_tokens_before, tokens.size());
  return std::nullopt;
}

}  // namespace

uint64_t CountTokens(const TextCodec& codec, std::string_view text, uint64_t enough) {
  uint64_t count = 0;
  while (!text.empty() && count <= enough) {
    const size_t part = PartBytes(text, kPartBytes);
    count += codec.Encode(text.substr(0, part), /*add_special=*/false, /*parse_special=*/true).size();
    text.remove_prefix(part);
  }
  return count;
}

std::vector<std::vector<size_t>> DroppableGroups(const std::vector<ChatMessage>& messages, bool keep_system) {
  size_t last_user = messages.size();
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role == "user") last_user = i;
  }
  const bool no_user = last_user == messages.size();
  std::vector<std::vector<size_t>> groups;
  bool open = false;
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if ((role == "system" && keep_system) || i == last_user) {
      open = open && i != last_user;
      continue;
    }
    const bool in_last_turn = no_user || i > last_user;
    const bool begins = in_last_turn ? role == "assistant" : role == "user";
    if (begins || role == "system" || !open) groups.emplace_back();
    open = role != "system";
    groups.back().push_back(i);
  }
  // The newest group goes on where the conversation ends, unless that is the user's own message.
  if (!messages.empty() && !groups.empty() && groups.back().back() == messages.size() - 1) groups.pop_back();
  return groups;
}

MaybeError BuildPrompt(Endpoint endpoint, CompletionRequest& request, const TextCodec& codec, uint32_t context_max,
                       BuiltPrompt* out) {
  const bool chat = endpoint == Endpoint::kChat;
  if (auto error = chat ? BuildChat(request, codec, context_max, out) : BuildText(request, codec, context_max, out)) {
    return error;
  }
  if (!out->tokens.empty()) return std::nullopt;
  const std::string param = chat ? "messages" : "prompt";
  return InvalidValue(param, absl::StrCat("`", param, "` has no tokens"), 1, 0);
}

}  // namespace reprise
