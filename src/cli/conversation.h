// A conversation at a terminal, without the terminal: turns, commands, files, the words about a turn.
//
// Ownership: values. Threads: one.
// Errors:    Load: NotFound, InvalidArgument, with what the file should be; the conversation is unchanged.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "cli/chat_backend.h"

namespace reprise {

enum class CommandKind { kSay, kHelp, kSystem, kSave, kLoad, kStats, kNew, kRetry, kQuit, kUnknown };

// What a line asks for. "//..." says a text that begins with a slash.
struct ChatCommand {
  CommandKind kind = CommandKind::kSay;
  std::string text;  // to say; or the command's argument; or, unknown, what to print
};
ChatCommand ParseCommand(std::string_view line);
std::string_view ChatHelp();

// Whether the line goes on in the next one: it ends in an odd number of backslashes. Then the last is taken off.
bool TakeContinuation(std::string& line);

class Conversation {
 public:
  // Empty: none. Replaces the one there is.
  void SetSystem(std::string text);
  void AddUser(std::string text);
  void AddAssistant(std::string text);
  // Drops the last reply, so that the last turn is the user's. False: there is nothing to try again.
  bool DropReply();
  // Drops the last turn if it is the user's: it was not answered.
  void DropQuestion();
  void Clear();  // but for the system text

  const std::vector<ChatTurn>& turns() const { return turns_; }

  // {"messages": [{"role": ..., "content": ...}]}, as requests have it.
  absl::Status Save(const std::string& path) const;
  absl::Status Load(const std::string& path);

  // Sums over the replies of this conversation, for /stats.
  void Count(const TurnStats& stats);
  std::string Summary() const;

 private:
  std::vector<ChatTurn> turns_;
  uint32_t replies_ = 0;
  TurnStats sum_;
};

// "120 reused · 14 computed · 58 tokens at 92.1/s · first after 31 ms"
std::string Describe(const TurnStats& stats);

// What may be printed on a terminal: without control characters but tab and line feed, so that no reply can
// move the cursor or set the title. REQUIRES: whole UTF-8 characters.
std::string Printable(std::string_view text);

}  // namespace reprise
