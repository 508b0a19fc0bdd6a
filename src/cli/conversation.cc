#include "cli/conversation.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "cli/flag_values.h"
#include "cli/usage.h"

namespace reprise {
namespace {

constexpr size_t kFileBytesMax = 16 << 20;

struct CommandName {
  std::string_view name;
  CommandKind kind;
  bool has_argument;
};
constexpr std::array kCommands = std::to_array<CommandName>({
    {"/help", CommandKind::kHelp, false},
    {"/system", CommandKind::kSystem, true},
    {"/save", CommandKind::kSave, true},
    {"/load", CommandKind::kLoad, true},
    {"/stats", CommandKind::kStats, false},
    {"/new", CommandKind::kNew, false},
    {"/retry", CommandKind::kRetry, false},
    {"/quit", CommandKind::kQuit, false},
    {"/exit", CommandKind::kQuit, false},
});

}  // namespace

std::string_view ChatHelp() {
  return "/system TEXT   what the model is told first; without TEXT: nothing\n"
         "/new           a new conversation, with the same system text\n"
         "/retry         another reply to the last question\n"
         "/save FILE     writes the conversation as JSON\n"
         "/load FILE     goes on with a saved one\n"
         "/stats         tokens reused, computed and written so far\n"
         "/quit          ends, like Ctrl-D\n"
         "A backslash at the end of a line: the message goes on in the next. // says a text that begins with /.\n"
         "Ctrl-C stops a reply and keeps the conversation.\n";
}

ChatCommand ParseCommand(std::string_view line) {
  if (line.empty() || line[0] != '/') return {CommandKind::kSay, std::string(line)};
  if (line.size() > 1 && line[1] == '/') return {CommandKind::kSay, std::string(line.substr(1))};
  const size_t space = std::min(line.find_first_of(" \t\n"), line.size());
  const std::string name(line.substr(0, space));
  const std::string argument(absl::StripAsciiWhitespace(std::string(line.substr(space))));
  std::vector<std::string> names;
  for (const CommandName& command : kCommands) {
    names.emplace_back(command.name);
    if (name != command.name) continue;
    if (!command.has_argument && !argument.empty())
      return {CommandKind::kUnknown, absl::StrCat(name, " takes nothing after it")};
    if ((command.kind == CommandKind::kSave || command.kind == CommandKind::kLoad) && argument.empty())
      return {CommandKind::kUnknown, absl::StrCat(name, " FILE: say which file")};
    return {command.kind, argument};
  }
  const std::string nearest = Nearest(name, names);
  return {CommandKind::kUnknown,
          absl::StrCat("there is no ", name, nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?"),
                       " /help lists the commands; // says a text that begins with /")};
}

bool TakeContinuation(std::string& line) {
  const size_t last = line.find_last_not_of('\\');
  const size_t backslashes = line.size() - (last == std::string::npos ? 0 : last + 1);
  if (backslashes % 2 == 0) return false;
  line.pop_back();
  return true;
}

void Conversation::SetSystem(std::string text) {
  if (!turns_.empty() && turns_[0].role == "system") turns_.erase(turns_.begin());
  if (!text.empty()) turns_.insert(turns_.begin(), {"system", std::move(text)});
}

void Conversation::AddUser(std::string text) { turns_.push_back({"user", std::move(text)}); }
void Conversation::AddAssistant(std::string text) { turns_.push_back({"assistant", std::move(text)}); }

bool Conversation::DropReply() {
  if (!turns_.empty() && turns_.back().role == "assistant") turns_.pop_back();
  return !turns_.empty() && turns_.back().role == "user";
}

void Conversation::DropQuestion() {
  if (!turns_.empty() && turns_.back().role == "user") turns_.pop_back();
}

void Conversation::Clear() {
  turns_.resize(!turns_.empty() && turns_[0].role == "system" ? 1 : 0);
  replies_ = 0;
  sum_ = {};
}

absl::Status Conversation::Save(const std::string& path) const {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  for (const ChatTurn& turn : turns_) messages.push_back({{"role", turn.role}, {"content", turn.content}});
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << nlohmann::ordered_json{{"messages", messages}}.dump(2, ' ', false, nlohmann::json::error_handler_t::replace)
       << "\n";
  file.close();
  if (file) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write ", path, ": ", std::strerror(errno)));
}

absl::Status Conversation::Load(const std::string& path) {
  const auto text = ReadTextFile("/load", path, kFileBytesMax);
  if (!text.ok()) return text.status();
  const absl::Status wrong = absl::InvalidArgumentError(
      absl::StrCat(path, R"( is not a conversation; it should be {"messages": [{"role": "user", "content": "..."}]})"));
  const nlohmann::json parsed = nlohmann::json::parse(*text, nullptr, false);
  if (!parsed.is_object() || !parsed.contains("messages") || !parsed["messages"].is_array()) return wrong;
  std::vector<ChatTurn> turns;
  for (const nlohmann::json& message : parsed["messages"]) {
    if (!message.is_object() || !message.contains("role") || !message["role"].is_string() ||
        !message.contains("content") || !message["content"].is_string())
      return wrong;
    turns.push_back({message["role"].get<std::string>(), message["content"].get<std::string>()});
  }
  turns_ = std::move(turns);
  return absl::OkStatus();
}

void Conversation::Count(const TurnStats& stats) {
  ++replies_;
  sum_.prompt_tokens += stats.prompt_tokens;
  sum_.reused_tokens += stats.reused_tokens;
  sum_.reply_tokens += stats.reply_tokens;
  sum_.first_token_ms += stats.first_token_ms;
  sum_.decode_ms += stats.decode_ms;
}

std::string Conversation::Summary() const {
  if (replies_ == 0) return "no reply yet";
  char text[256];
  std::snprintf(text, sizeof(text),
                "%u replies · %u prompt tokens: %u reused, %u computed · %u tokens written at %.1f/s · first token "
                "after %.0f ms on average",
                replies_, sum_.prompt_tokens, sum_.reused_tokens, sum_.prompt_tokens - sum_.reused_tokens,
                sum_.reply_tokens, sum_.decode_ms > 0 ? sum_.reply_tokens / sum_.decode_ms * 1e3 : 0.0,
                sum_.first_token_ms / replies_);
  return text;
}

std::string Describe(const TurnStats& stats) {
  std::string text;
  char part[96];
  if (stats.counted) {
    std::snprintf(part, sizeof(part), "%u reused · %u computed · ", stats.reused_tokens,
                  stats.prompt_tokens - stats.reused_tokens);
    text += part;
  }
  // The first token comes out of the prompt's computation: n tokens have n - 1 steps between them.
  const double per_second =
      stats.reply_tokens > 1 && stats.decode_ms > 0 ? (stats.reply_tokens - 1) / stats.decode_ms * 1e3 : 0;
  std::snprintf(part, sizeof(part), "%u tokens", stats.reply_tokens);
  text += part;
  if (per_second > 0) {
    std::snprintf(part, sizeof(part), " at %.1f/s", per_second);
    text += part;
  }
  if (stats.reply_tokens > 0) {
    std::snprintf(part, sizeof(part), " · first after %.0f ms", stats.first_token_ms);
    text += part;
  }
  if (stats.end == "length") text += " · ended by the limit";
  if (stats.end == "cancelled") text += " · stopped";
  return text;
}

std::string Printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    // U+0080 to U+009F, which terminals may read as controls, are C2 80 to C2 9F.
    if (c == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0) {
      ++i;
      continue;
    }
    if ((c >= 0x20 && c != 0x7f) || c == '\n' || c == '\t') out.push_back(text[i]);
  }
  return out;
}

}  // namespace reprise
