#include "cli/line_editor.h"

#include <histedit.h>
#include <langinfo.h>
#include <sys/stat.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>

namespace reprise {
namespace {

constexpr int kHistoryLines = 1000;

bool g_more = false;  // libedit's prompt function has no argument of ours

char* Prompt(EditLine*) {
  static char first[] = "> ", next[] = "… ";
  return g_more ? next : first;
}

class TerminalEditor final : public LineEditor {
 public:
  explicit TerminalEditor(std::string history_path) : history_path_(std::move(history_path)) {
    // libedit reads characters by the locale; in one without UTF-8 (a bare container) it would split them.
    std::setlocale(LC_CTYPE, "");
    if (std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
    editor_ = el_init("reprise", stdin, stdout, stderr);
    history_ = history_init();
    HistEvent event;
    history(history_, &event, H_SETSIZE, kHistoryLines);
    history(history_, &event, H_SETUNIQUE, 1);
    if (!history_path_.empty()) history(history_, &event, H_LOAD, history_path_.c_str());
    el_set(editor_, EL_PROMPT, Prompt);
    el_set(editor_, EL_EDITOR, "emacs");
    el_set(editor_, EL_HIST, history, history_);
    el_set(editor_, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    el_set(editor_, EL_BIND, "\x1b[3~", "ed-delete-next-char", nullptr);
    el_source(editor_, nullptr);  // the user's ~/.editrc
  }
  ~TerminalEditor() override {
    HistEvent event;
    if (!history_path_.empty()) {
      history(history_, &event, H_SAVE, history_path_.c_str());
      chmod(history_path_.c_str(), 0600);  // what a person asks is their own
    }
    history_end(history_);
    el_end(editor_);
  }

  Result Read(bool more, std::string& line) override {
    g_more = more;
    el_resize(editor_);  // the window may have another size since the last line
    int count = 0;
    errno = 0;
    const char* text = el_gets(editor_, &count);
    if (text == nullptr || count <= 0) {
      const bool interrupted = count == -1 && errno == EINTR;
      el_reset(editor_);
      std::fputs("\n", stdout);
      return interrupted ? Result::kInterrupted : Result::kEnd;
    }
    line.assign(text, static_cast<size_t>(count));
    while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
    return Result::kLine;
  }

  void Remember(const std::string& line) override {
    HistEvent event;
    history(history_, &event, H_ENTER, line.c_str());
  }

 private:
  const std::string history_path_;
  EditLine* editor_ = nullptr;
  History* history_ = nullptr;
};

class PlainReader final : public LineEditor {
 public:
  Result Read(bool, std::string& line) override {
    if (!std::getline(std::cin, line)) return Result::kEnd;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    return Result::kLine;
  }
  void Remember(const std::string&) override {}
};

}  // namespace

std::unique_ptr<LineEditor> MakeTerminalEditor(const std::string& history_path) {
  return std::make_unique<TerminalEditor>(history_path);
}
std::unique_ptr<LineEditor> MakePlainReader() { return std::make_unique<PlainReader>(); }

std::string HistoryPath() {
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  std::filesystem::path directory;
  if (state != nullptr && state[0] == '/') {  // relative paths are to be ignored
    directory = state;
  } else if (home != nullptr && home[0] == '/') {
    directory = std::filesystem::path(home) / ".local" / "state";
  } else {
    return "";
  }
  directory /= "reprise";
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  return error ? "" : (directory / "chat_history").string();
}

}  // namespace reprise
