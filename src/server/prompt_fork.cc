#include "server/prompt_fork.h"

#include <algorithm>
#include <cctype>
#include <regex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/text.h"

namespace reprise {
namespace {

constexpr uint32_t kTokensShown = 12;     // of the prompt, on both sides of the fork
constexpr size_t kShiftBytesMax = 64;     // of what tokens have more than the text: BOS, a leading space
constexpr size_t kToolMarginBytes = 128;  // between a tool's texts, as templates write them

std::string Mark(size_t message) { return absl::StrCat("ReprisesMark", message, "End"); }

// A message's text in a prompt: [begin, end).
struct Span {
  size_t message;
  size_t begin;
  size_t end;
};

bool HasText(const ChatMessage& message) {
  return std::any_of(message.content.begin(), message.content.end(),
                     [](unsigned char c) { return std::isspace(c) == 0; });
}

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) text.remove_suffix(1);
  return text;
}

// What the template writes before each message's text, in the order of the prompt, and after the last one.
struct Skeleton {
  std::vector<size_t> messages;
  std::vector<std::string> literals;  // [messages + 1]
};

std::optional<Skeleton> SkeletonOf(const ChatRequest& chat, const TextCodec& codec) {
  ChatRequest marked = chat;
  for (size_t i = 0; i < marked.messages.size(); ++i) {
    if (HasText(marked.messages[i])) marked.messages[i].content = Mark(i);
  }
  const absl::StatusOr<ChatPrompt> prompt = codec.Prompt(marked);
  if (!prompt.ok()) return std::nullopt;
  const std::string& text = prompt->text;
  std::vector<Span> found;
  for (size_t i = 0; i < marked.messages.size(); ++i) {
    const std::string mark = Mark(i);
    const size_t at = HasText(chat.messages[i]) ? text.find(mark) : std::string::npos;
    if (at != std::string::npos) found.push_back({i, at, at + mark.size()});
  }
  std::sort(found.begin(), found.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  Skeleton skeleton;
  size_t cursor = 0;
  for (const Span& span : found) {
    skeleton.messages.push_back(span.message);
    skeleton.literals.push_back(text.substr(cursor, span.begin - cursor));
    cursor = span.end;
  }
  skeleton.literals.push_back(text.substr(cursor));
  return skeleton;
}

// The texts of the messages in `text`, in its order, as far as they can be followed.
std::vector<Span> Locate(const ChatRequest& chat, std::string_view text, const Skeleton& skeleton) {
  std::vector<Span> spans;
  size_t cursor = 0;
  for (size_t i = 0; i < skeleton.messages.size(); ++i) {
    const std::string& before = skeleton.literals[i];
    const std::string& after = skeleton.literals[i + 1];
    const size_t begin = text.find(before, cursor);
    if (begin == std::string::npos) break;
    Span span{skeleton.messages[i], begin + before.size(), 0};
    const std::string& content = chat.messages[span.message].content;
    size_t least = 0;  // bytes that are the message's for certain, whatever they look like
    for (const std::string_view whole : {std::string_view(content), Trimmed(content)}) {
      if (least == 0 && text.substr(span.begin).starts_with(whole)) least = whole.size();
    }
    span.end = after.empty() ? span.begin + least : text.find(after, span.begin + least);
    if (span.end == std::string::npos) span.end = i + 1 == skeleton.messages.size() ? text.size() : span.begin + least;
    spans.push_back(span);
    cursor = span.end;
  }
  return spans;
}

// The tool that is written at `offset` of [low, high), or around it; nullopt: there are none there.
std::optional<std::string> ToolAt(const ChatRequest& chat, std::string_view text, size_t low, size_t high,
                                  size_t offset) {
  std::vector<std::pair<size_t, const ChatTool*>> written;
  size_t end = 0;
  for (const ChatTool& tool : chat.tools) {
    size_t at = text.substr(0, high).find(absl::StrCat("\"", tool.name, "\""), low);  // not a word of the template's
    if (at == std::string_view::npos) at = text.substr(0, high).find(tool.name, low);
    if (at == std::string_view::npos) continue;
    written.emplace_back(at, &tool);
    end = std::max(end, at + tool.name.size() + tool.description.size() + tool.parameters.size() + kToolMarginBytes);
  }
  if (written.empty()) return std::nullopt;
  std::sort(written.begin(), written.end());
  if (offset + kToolMarginBytes < written.front().first || offset > end) return std::nullopt;
  const ChatTool* tool = written.front().second;
  for (const auto& [at, next] : written) {
    if (at <= offset) tool = next;
  }
  return tool->name;
}

size_t Characters(std::string_view text) { return std::count_if(text.begin(), text.end(), BeginsCharacter); }

// Which byte of `text` the token `index` begins at: tokens may have a BOS and a leading space more than it.
std::optional<size_t> OffsetOf(std::span<const TokenId> prompt, uint32_t index, std::string_view text,
                               const TextCodec& codec) {
  size_t all = 0, before = 0;
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (i == index) before = all;
    all += codec.Piece(prompt[i]).size();
  }
  if (all < text.size() || all - text.size() > kShiftBytesMax) return std::nullopt;
  const size_t shift = all - text.size();
  return before < shift ? 0 : before - shift;
}

Json TokenOf(TokenId token, const TextCodec& codec) {
  return Json({{"id", token.value()}, {"text", codec.Piece(token)}});
}

std::string TextOf(std::span<const TokenId> tokens, const TextCodec& codec) {
  std::string text;
  for (const TokenId token : tokens) text += codec.Piece(token);
  return text;
}

// Whether the text has something like 12:30, 2026-11-29, 29.11.2026 or 29 Nov.
bool LooksLikeTime(std::string_view text) {
  static const std::regex time(R"(\d:\d\d|\d([-/.])\d\d?\1\d|\d,? (Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)|)"
                               R"((Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]* \d)");
  return std::regex_search(text.begin(), text.end(), time);
}

// Whether it was there before the last turn began.
bool IsOld(const ChatRequest& chat, const PromptPlace& place) {
  if (place.part == PromptPart::kTools) return true;
  size_t last_user = chat.messages.size() - 1;
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    if (chat.messages[i].role == "user") last_user = i;
  }
  return place.message < last_user;
}

// "1,234 tokens have"
std::string TokensHave(uint64_t tokens) {
  return absl::StrCat(WithCommas(tokens), tokens == 1 ? " token has" : " tokens have");
}

std::string WhereInWords(const ChatRequest& chat, const PromptPlace& place) {
  const std::string message =
      absl::StrCat("message ", place.message, " (", chat.messages[place.message].role.substr(0, 32), ")");
  switch (place.part) {
    case PromptPart::kText:
      return message;
    case PromptPart::kTools:
      return absl::StrCat("the list of tools, at `", place.tool.value_or(""), "`,");
    case PromptPart::kTemplate:
      return absl::StrCat("what the template writes before ", message);
  }
  return message;
}

// Whether both tokens begin alike, as those of one text do that was split in two ways.
bool BeginAlike(const Json& fork) {
  if (!fork["cached"].is_object()) return false;
  const std::string asked = fork["asked"]["text"], cached = fork["cached"]["text"];
  return !asked.empty() && !cached.empty() && (asked.starts_with(cached) || cached.starts_with(asked));
}

std::string AdviceOf(const ChatRequest& chat, const PromptPlace& place, bool old_text, const Json& fork) {
  const std::string around = fork["before"].get<std::string>() + fork["after"].get<std::string>();
  if (!old_text) return "nothing: what is new has to be computed once";
  const std::string& role = chat.messages[place.message].role;
  if (place.part == PromptPart::kTools) return "send the tools in one order and with the same texts in every turn";
  if (LooksLikeTime(around)) {
    return "a date or time here makes another prompt of every turn: move it into the last message";
  }
  if (role == "assistant" && place.part == PromptPart::kText && BeginAlike(fork)) {
    return "if the reply came back unchanged, nothing: the model wrote it in other tokens than its text is split into";
  }
  if (role == "assistant" || role == "tool") {
    return "send old replies back as they came, `reasoning_content` and `tool_calls` too; a template that drops old "
           "reasoning does so once for each turn";
  }
  if (place.part == PromptPart::kTemplate) return "the template writes this part anew: see --chat-template";
  if (role == "user") {
    return "if this is a conversation that went on: send old messages back as they were; if not, nothing: it is new "
           "here";
  }
  return "keep this message the same in every turn, and put what changes into the last one";
}

}  // namespace

std::string_view Name(PromptPart part) {
  switch (part) {
    case PromptPart::kText:
      return "text";
    case PromptPart::kTools:
      return "tools";
    case PromptPart::kTemplate:
      return "template";
  }
  CHECK(false);
}

std::optional<PromptPlace> FindPlace(const ChatRequest& chat, std::string_view text, size_t offset,
                                     const TextCodec& codec) {
  if (chat.messages.empty()) return std::nullopt;
  const std::optional<Skeleton> skeleton = SkeletonOf(chat, codec);
  if (!skeleton) return std::nullopt;
  const std::vector<Span> spans = Locate(chat, text, *skeleton);
  size_t low = 0, high = text.size();               // of what the template writes around `offset`
  size_t after = 0, before = chat.messages.size();  // messages that may be written there: [after, before)
  PromptPlace place{.part = PromptPart::kTemplate};
  for (const Span& span : spans) {
    if (offset < span.begin) {
      high = span.begin;
      before = span.message;
      break;
    }
    place.message = span.message;
    if (offset <= span.end) {  // what follows a text that ends too early is the text's difference
      place.part = PromptPart::kText;
      place.offset = Characters(text.substr(span.begin, offset - span.begin));
      return place;
    }
    place.message = std::min(span.message + 1, chat.messages.size() - 1);
    low = span.end;
    after = span.message;
  }
  // A call is written there and has no text of its own.
  for (size_t i = after; i < before; ++i) {
    if (chat.messages[i].tool_calls.empty()) continue;
    place.message = i;
    place.part = PromptPart::kText;
    return place;
  }
  place.tool = ToolAt(chat, text, low, high, offset);
  if (place.tool) place.part = PromptPart::kTools;
  return place;
}

Json ForkOf(std::span<const TokenId> prompt, const PrefixReport& report, const ChatRequest* chat, std::string_view text,
            const TextCodec& codec) {
  if (report.fork >= prompt.size()) return nullptr;
  const uint32_t first = report.fork - std::min(report.fork, kTokensShown);
  const std::string before = TextOf(prompt.subspan(first, report.fork - first), codec);
  const std::string after =
      TextOf(prompt.subspan(report.fork).first(std::min<size_t>(prompt.size() - report.fork, kTokensShown)), codec);
  Json fork = {{"at_token", report.fork},
               {"asked", TokenOf(prompt[report.fork], codec)},
               {"cached", report.cached_token ? TokenOf(*report.cached_token, codec) : Json(nullptr)},
               {"lost_tokens", report.cached_beyond},
               {"before", before},
               {"after", after}};
  std::optional<PromptPlace> place;
  if (chat != nullptr) {
    const std::optional<size_t> offset = OffsetOf(prompt, report.fork, text, codec);
    if (offset) place = FindPlace(*chat, text, *offset, codec);
  }
  const bool parts = report.cached_token.has_value();
  const std::string cost =
      absl::StrCat(parts ? " differs from what is cached: " : " is new: ", TokensHave(prompt.size() - report.fork),
                   " to be computed");
  if (!place) {
    fork["summary"] = absl::StrCat("what begins at position ", report.fork, cost);
    return fork;
  }
  const bool old_text = parts && IsOld(*chat, *place);
  Json message = {{"index", place->message},
                  {"role", chat->messages[place->message].role},
                  {"part", std::string(Name(place->part))}};
  if (place->part == PromptPart::kText) message["offset"] = place->offset;
  if (place->tool) message["tool"] = *place->tool;
  fork["message"] = std::move(message);
  fork["old_text"] = old_text;
  fork["summary"] =
      absl::StrCat(WhereInWords(*chat, *place), cost, old_text ? " again, in every turn in which it changes" : "");
  fork["advice"] = AdviceOf(*chat, *place, old_text, fork);
  return fork;
}

}  // namespace reprise
