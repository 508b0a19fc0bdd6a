// reprise chat: a conversation at a terminal, with a model in this process or a server.
#include <signal.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "cli/chat_backend.h"
#include "cli/commands.h"
#include "cli/conversation.h"
#include "cli/line_editor.h"
#include "cli/model_open.h"
#include "cli/start_plan.h"

namespace reprise {
namespace {

// One person at one terminal.
constexpr uint32_t kSequences = 1;
constexpr uint32_t kQueueRequests = 2;

struct ChatFlags {
  EngineFlags engine;
  std::string url;
  std::string model_name;
  std::string system;
  ChatSettings settings;
  double temperature = 0.7;
  double top_p = 0.95;
};

std::atomic<bool> g_stop{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set in a signal handler");

// Without SA_RESTART: a read of the terminal ends, too.
void CatchInterrupts() {
  struct sigaction action {};
  action.sa_handler = [](int) { g_stop = true; };
  sigaction(SIGINT, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

class ChatLoop {
 public:
  ChatLoop(const ChatFlags& flags, std::unique_ptr<ChatBackend> backend, bool terminal)
      : settings_(flags.settings),
        backend_(std::move(backend)),
        terminal_(terminal),
        styled_(terminal && isatty(STDOUT_FILENO) != 0 && std::getenv("NO_COLOR") == nullptr &&
                std::strcmp(std::getenv("TERM") == nullptr ? "dumb" : std::getenv("TERM"), "dumb") != 0),
        editor_(terminal ? MakeTerminalEditor(HistoryPath()) : MakePlainReader()) {
    talk_.SetSystem(flags.system);
  }

  // Until Ctrl-D, /quit or the end of the input. The status of the last reply, where nobody is there to see it.
  absl::Status Run() {
    if (terminal_)
      Note(absl::StrCat(backend_->name(), "\n/help lists the commands; Ctrl-C stops a reply, Ctrl-D ends"));
    for (std::string message; ReadMessage(message);) {
      if (message.empty()) continue;
      editor_->Remember(message);
      const ChatCommand command = ParseCommand(message);
      if (command.kind == CommandKind::kQuit) break;
      Obey(command);
    }
    return terminal_ ? absl::OkStatus() : last_;
  }

 private:
  // Lines up to one that does not go on. False: the end.
  bool ReadMessage(std::string& message) {
    message.clear();
    for (bool more = false;;) {
      std::string line;
      g_stop = false;
      const LineEditor::Result result = editor_->Read(more, line);
      if (result == LineEditor::Result::kEnd) return more && !message.empty();
      if (result == LineEditor::Result::kInterrupted) {
        message.clear();
        more = false;
        continue;
      }
      more = TakeContinuation(line);
      absl::StrAppend(&message, line, more ? "\n" : "");
      if (!more) return true;
    }
  }

  void Obey(const ChatCommand& command) {
    switch (command.kind) {
      case CommandKind::kSay:
        talk_.AddUser(command.text);
        return Answer();
      case CommandKind::kRetry:
        return talk_.DropReply() ? Answer() : Note("there is no question yet");
      case CommandKind::kHelp:
        return Note(std::string(ChatHelp()));
      case CommandKind::kSystem:
        talk_.SetSystem(command.text);
        return Note(command.text.empty() ? "no system text from now on" : "the model is told this first from now on");
      case CommandKind::kNew:
        talk_.Clear();
        return Note("a new conversation");
      case CommandKind::kStats:
        return Note(talk_.Summary());
      case CommandKind::kSave:
        return Told(talk_.Save(command.text), absl::StrCat("saved as ", command.text));
      case CommandKind::kLoad:
        return Told(talk_.Load(command.text), absl::StrCat("loaded ", command.text));
      case CommandKind::kUnknown:
        return Note(command.text);
      case CommandKind::kQuit:
        return;
    }
  }

  // Streams a reply to the last question. One that fails takes its question back; one that is stopped stays.
  void Answer() {
    std::string reply;
    bool thinking = false;
    const auto on_text = [&](std::string_view text, bool thought) {
      if (!thought) reply += text;
      if (thought && !terminal_) return;
      if (thought != std::exchange(thinking, thought)) Style(thought ? "\x1b[2m" : "\x1b[0m\n");
      const std::string shown = Printable(text);
      std::fwrite(shown.data(), 1, shown.size(), stdout);
      std::fflush(stdout);
    };
    g_stop = false;
    const absl::StatusOr<TurnStats> stats = backend_->Reply(talk_.turns(), settings_, on_text, g_stop);
    if (thinking) Style("\x1b[0m");
    std::fputs("\n", stdout);
    std::fflush(stdout);
    last_ = stats.status();
    if (!stats.ok()) {
      talk_.DropQuestion();
      std::fprintf(stderr, "reprise: %s%s\n", std::string(stats.status().message()).c_str(),
                   absl::IsOutOfRange(stats.status())
                       ? "\nthe conversation is full: /new begins another, /save keeps this one"
                       : "");
      return;
    }
    talk_.AddAssistant(reply);
    talk_.Count(*stats);
    if (terminal_) Note(Describe(*stats));
  }

  void Told(const absl::Status& status, const std::string& done) {
    Note(status.ok() ? done : std::string(status.message()));
  }

  // Words of ours: dim at a terminal, on stderr where stdout is for the replies alone.
  void Note(std::string text) {
    while (!text.empty() && text.back() == '\n') text.pop_back();
    if (!terminal_) {
      std::fprintf(stderr, "%s\n", text.c_str());
      return;
    }
    Style("\x1b[2m");
    std::printf("%s", text.c_str());
    Style("\x1b[0m");
    std::printf("\n");
    std::fflush(stdout);
  }

  void Style(const char* code) {
    if (styled_) std::fputs(code, stdout);
  }

  const ChatSettings settings_;
  const std::unique_ptr<ChatBackend> backend_;
  const bool terminal_;
  const bool styled_;
  const std::unique_ptr<LineEditor> editor_;
  Conversation talk_;
  absl::Status last_;
};

absl::StatusOr<std::unique_ptr<ChatBackend>> FromFile(const ChatFlags& flags) {
  absl::StatusOr<LocalEngineOptions> options = flags.engine.Resolve();
  if (!options.ok()) return options.status();
  if (flags.engine.sequences == 0) options->sequences_max = kSequences;
  options->queue_requests_max = kQueueRequests;
  auto model = OpenModel(options->model_path, options->kv_type, options->adapters);
  if (!model.ok()) return model.status();
  const auto none = [](const StartSettings&, uint32_t) { return uint64_t{0}; };
  absl::StatusOr<DiskChoice> disk =
      ChooseDisk(flags.engine.disk, (*model)->geometry, RealFileSystem(), CacheDirectory());
  if (!disk.ok()) return disk.status();
  const absl::StatusOr<MemoryPlan> plan = PlanStartWithDisk(**model, *options, none, ReadMachineInfo(), *disk);
  if (!plan.ok()) return plan.status();
  if (!disk->as_asked) std::fprintf(stderr, "no disk cache: %s\n", disk->off.c_str());
  return MakeFileBackend(*options);
}

absl::Status Chat(ChatFlags flags) {
  if (flags.engine.model_path.empty() == flags.url.empty())
    return absl::InvalidArgumentError(
        "with whom? `reprise chat MODEL.gguf` loads a model, `reprise chat --url http://127.0.0.1:8080` asks a server");
  spdlog::set_level(spdlog::level::warn);
  flags.settings.temperature = flags.temperature;
  flags.settings.top_p = flags.top_p;
  const char* key = std::getenv("OPENAI_API_KEY");
  auto backend =
      flags.url.empty() ? FromFile(flags) : MakeUrlBackend(flags.url, flags.model_name, key == nullptr ? "" : key);
  if (!backend.ok()) return backend.status();
  CatchInterrupts();
  return ChatLoop(flags, *std::move(backend), isatty(STDIN_FILENO) != 0).Run();
}

}  // namespace

void AddChatCommand(CLI::App& app, int& status) {
  auto flags = std::make_shared<ChatFlags>();
  CLI::App* command = app.add_subcommand("chat", "talk with a model file, or with a server");
  flags->engine.AddTo(*command, /*disk_on=*/true);
  command->get_option("model")->required(false);
  command->add_option("--url", flags->url, "an OpenAI-compatible server; its key comes from OPENAI_API_KEY");
  command->add_option("--model", flags->model_name, "with --url: the model to ask for (default: its first)");
  command->add_option("--system", flags->system, "what the model is told first");
  command->add_option("--temperature", flags->temperature, "0: always the likeliest token")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 100.0));
  command->add_option("--top-p", flags->top_p, "draw from the likeliest tokens that have this probability together")
      ->capture_default_str()
      ->check(CLI::Range(1e-6, 1.0));
  command->add_option("--seed", flags->settings.seed, "the same seed, the same replies (default: random)");
  command->add_option("--max-tokens", flags->settings.max_tokens, "of one reply (default: up to the context)");
  command->callback([flags, &status] {
    const absl::Status chatted = Chat(*flags);
    if (!chatted.ok()) status = Report(chatted);
  });
}

}  // namespace reprise
