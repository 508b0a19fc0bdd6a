// Lines from a person: with editing and a history file at a terminal (libedit), plain ones from a pipe.
//
// Ownership: owns libedit's state. One at a time in a process. Threads: one.
// Errors:    none; a history that cannot be read or written is not kept.
#pragma once

#include <memory>
#include <string>

namespace reprise {

class LineEditor {
 public:
  enum class Result { kLine, kInterrupted, kEnd };

  virtual ~LineEditor() = default;
  // Waits for a line, without its end. kInterrupted: Ctrl-C, what was typed is dropped. kEnd: Ctrl-D, or the
  // input has ended. `more`: the message of the last line goes on.
  virtual Result Read(bool more, std::string& line) = 0;
  virtual void Remember(const std::string& line) = 0;
};

// `history_path` empty: no history file.
std::unique_ptr<LineEditor> MakeTerminalEditor(const std::string& history_path);
std::unique_ptr<LineEditor> MakePlainReader();

// $XDG_STATE_HOME/reprise/chat_history, by default in ~/.local/state; its directory is made. Empty: nowhere.
std::string HistoryPath();

}  // namespace reprise
