// reprise serve: one model over HTTP until SIGTERM or Ctrl-C; a second signal, or one before it serves, ends it at
// once.
#include <pthread.h>
#include <signal.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <semaphore>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/banner.h"
#include "cli/commands.h"
#include "cli/flag_values.h"
#include "cli/model_open.h"
#include "cli/shared_prefix.h"
#include "cli/start_plan.h"
#include "env/machine.h"
#include "server/server.h"

namespace reprise {
namespace {

constexpr uint32_t kRequestsBesides = 32;  // taken from the network, not in the engine's queue yet or ending

struct ServeFlags {
  EngineFlags engine;
  ServerOptions server;
  std::vector<std::string> aliases;
  std::string api_key_file;
  std::vector<std::string> shared_prefixes;  // files
  std::string drain_timeout = "30s";
  std::string log_level = "info";
  uint32_t queue_requests = 256;
  bool log_json = false;
  bool dry_run = false;
  bool json = false;
};

// Everything that can be known before a weight is read.
struct Start {
  LocalEngineOptions options;
  ServerOptions server;
  std::unique_ptr<ModelDescription> model;
  MemoryPlan plan;
  DiskChoice disk;
  std::vector<std::string> names;
  std::vector<std::string> warnings;
  uint32_t drain_ms = 0;
};

uint32_t RequestsMax(uint32_t sequences, uint32_t queue_requests) {
  return sequences + queue_requests + kRequestsBesides;
}

// A template that cannot be used is found now, not after the weights.
absl::Status CheckTemplate(const LocalEngineOptions& options) {
  if (options.chat_template.empty()) return absl::OkStatus();
  Ledger ledger(Tokenizer::EstimateBytes(options.model_path));
  const auto tokenizer = Tokenizer::Load(options.model_path, ledger);
  if (!tokenizer.ok()) return tokenizer.status();
  const absl::Status status = ChatTemplate::Load(**tokenizer, options.chat_template).status();
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat("--chat-template: ", std::string(status.message()),
                                                 "; without the flag the model's own template is used"));
}

absl::StatusOr<Start> Prepare(const ServeFlags& flags) {
  Start start;
  start.server = flags.server;
  absl::StatusOr<LocalEngineOptions> options = flags.engine.Resolve();
  if (!options.ok()) return options.status();
  start.options = *std::move(options);
  start.options.queue_requests_max = flags.queue_requests;
  start.server.limits.requests_max = RequestsMax(start.options.sequences_max, flags.queue_requests);
  const auto drain_ms = ParseMilliseconds(flags.drain_timeout);
  if (!drain_ms.ok())
    return absl::InvalidArgumentError(absl::StrCat("--drain-timeout: ", std::string(drain_ms.status().message())));
  start.drain_ms = *drain_ms;
  if (!flags.api_key_file.empty()) {
    absl::StatusOr<KeyFile> keys = ReadKeyFile(flags.api_key_file);
    if (!keys.ok()) return keys.status();
    start.server.api_keys = std::move(keys->keys);
    if (!keys->warning.empty()) start.warnings.push_back(keys->warning);
  }
  if (!IsLoopback(start.server.host) && start.server.api_keys.empty())
    start.warnings.push_back(absl::StrCat("everybody who reaches ", start.server.host,
                                          " over the network may use this server; --api-key-file "
                                          "FILE asks for a key"));
  auto model = OpenModel(start.options.model_path, start.options.kv_type, start.options.adapters);
  if (!model.ok()) return model.status();
  start.model = *std::move(model);
  auto prefixes = ReadSharedPrefixes(flags.shared_prefixes, start.options.model_path, start.options.chat_template);
  if (!prefixes.ok()) return prefixes.status();
  start.options.shared_prefixes = *std::move(prefixes);
  for (size_t i = 0; i < start.options.shared_prefixes.size(); ++i) {
    const size_t tokens = start.options.shared_prefixes[i].size(), block = start.model->geometry.block_tokens;
    if (tokens < block)
      start.warnings.push_back(absl::StrCat("--shared-prefix ", flags.shared_prefixes[i], " shares nothing: it has ",
                                            tokens, " tokens, and whole blocks of ", block, " are shared"));
  }
  const OtherBytes other = [limits = start.server.limits](const StartSettings& settings, uint32_t context) {
    ServerLimits with = limits;
    with.requests_max = RequestsMax(settings.sequences, settings.queue_requests);
    return Server::Footprint(with, context);
  };
  absl::StatusOr<DiskChoice> disk =
      ChooseDisk(flags.engine.disk, start.model->geometry, RealFileSystem(), CacheDirectory());
  if (!disk.ok()) return disk.status();
  start.disk = *std::move(disk);
  absl::StatusOr<MemoryPlan> plan =
      PlanStartWithDisk(*start.model, start.options, other, ReadMachineInfo(), start.disk);
  if (!plan.ok()) return plan.status();
  start.options.disk.log = [](const std::string& text) { spdlog::warn("{}", text); };
  if (!start.disk.as_asked) start.warnings.push_back(absl::StrCat("no disk cache: ", start.disk.off));
  start.plan = *std::move(plan);
  const absl::Status checked = CheckTemplate(start.options);
  if (!checked.ok()) return checked;
  start.names = {ModelStem(start.options.model_path)};
  for (const std::string& alias : flags.aliases)
    if (std::find(start.names.begin(), start.names.end(), alias) == start.names.end()) start.names.push_back(alias);
  return start;
}

std::string From(bool asked, const char* flag) { return absl::StrCat(asked ? "" : "default; ", flag); }

std::vector<LimitLine> Limits(const ServeFlags& flags, const Start& start, uint32_t connections_max) {
  const ServerLimits& limits = start.server.limits;
  std::string connections_from = "default";
  if (connections_max < limits.connections_max)
    connections_from = absl::StrCat("the open files (ulimit -n) lowered it from ", limits.connections_max);
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  const bool context_lowered = start.plan.context_from == "the memory";
  return {{"context", start.plan.context, "tokens",
           absl::StrCat(start.plan.context_from, context_lowered ? " lowered it" : "", "; trained for ",
                        start.model->context_trained)},
          {"pool", start.plan.pool_tokens, "tokens", absl::StrCat("what the memory leaves; ", start.plan.memory_from)},
          {"sequences", start.options.sequences_max, "at once", From(flags.engine.sequences > 0, "--sequences")},
          {"queue", flags.queue_requests, "requests", From(flags.queue_requests != 256, "--queue-requests; then 429")},
          {"queue tokens", start.options.queue_tokens_max, "tokens", "default; then 429"},
          {"requests", limits.requests_max, "at once", "sequences + queue + 32"},
          {"connections", connections_max, "", connections_from},
          {"open files", files.rlim_cur, "", "the system (ulimit -n)"},
          {"body", limits.body_bytes_max, "bytes", "default"},
          {"bodies", limits.bodies_bytes_max, "bytes", "default; of all requests together"},
          {"header", limits.header_bytes_max, "bytes", "default"},
          {"drain", start.drain_ms / 1000, "s", From(flags.drain_timeout != "30s", "--drain-timeout")}};
}

std::string ChatLine(const Start& start, const std::string& path) {
  if (!path.empty()) return absl::StrCat("by the template ", path);
  return HasChatTemplate(start.options.model_path) ? "by the model's own template"
                                                   : "none: a base model, /v1/completions only; --chat-template FILE "
                                                     "gives it one";
}

std::string UrlOf(const std::string& host, uint16_t port) {
  const bool v6 = host.find(':') != std::string::npos;
  return absl::StrCat("http://", v6 ? "[" : "", host, v6 ? "]" : "", ":", port, "/v1");
}

StartReport Report(const ServeFlags& flags, const Start& start, uint32_t connections_max, uint16_t port) {
  StartReport report{.model = start.model.get(),
                     .plan = start.plan,
                     .isa = start.options.isa.value_or(BestIsa()),
                     .threads = start.options.threads > 0 ? start.options.threads : ReadMachineInfo().cores,
                     .threads_from = start.options.threads > 0 ? "--threads" : "one per core; --threads",
                     .chat = ChatLine(start, flags.engine.chat_template_path),
                     .address = UrlOf(start.server.host, port),
                     .names = start.names,
                     .disk = start.disk,
                     .limits = Limits(flags, start, connections_max)};
  report.battery = RunBattery(*start.model, {nullptr, report.isa});
  const auto off = [&report](bool is_off, const char* name, const char* meaning, const char* flag) {
    if (is_off) report.off.push_back({name, meaning, flag});
  };
  off(start.server.api_keys.empty(), "API keys", "every client is served", "--api-key-file FILE");
  off(start.server.cors_origins.empty(), "CORS", "web pages of other machines may not ask", "--cors ORIGIN");
  off(!start.server.any_model, "other names", "404 for a model name that is not served", "--any-model");
  off(!start.server.log_prompts, "prompts in log", "the log has numbers, never a text", "--log-prompts");
  off(!start.server.log_traces, "traces in log", "requests cannot be replayed by bench trace",
      "--log-json --log-traces");
  off(!flags.log_json, "JSON log", "the log is lines for people", "--log-json");
  off(!start.disk.off.empty(), "disk cache", "the cache ends with the process", "--cache-disk auto");
  report.warnings = start.warnings;
  if (!report.battery.different.empty())
    report.warnings.push_back(absl::StrCat("this process computes ", absl::StrJoin(report.battery.different, ", "),
                                           " otherwise than recorded: its state is shared with none that does not"));
  return report;
}

// SIGINT and SIGTERM, from its making on; the first one that comes before Serve ends the process at once, as it would
// without this class, and so does a second one after it. Threads started later inherit the mask that leaves them to it.
class Signals {
 public:
  Signals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGINT);
    sigaddset(&set_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    signal(SIGPIPE, SIG_IGN);
    // Detached, with a share of the state: it waits for signals until the process ends.
    std::thread([state = state_, set = set_] {
      int number = 0;
      sigwait(&set, &number);
      if (!state->serving) std::_Exit(128 + number);
      state->stop.release();
      sigwait(&set, &number);
      std::_Exit(1);
    }).detach();
  }
  // From here on the first signal ends WaitForStop instead.
  void Serve() { state_->serving = true; }
  void WaitForStop() { state_->stop.acquire(); }

 private:
  struct State {
    std::atomic<bool> serving{false};
    std::binary_semaphore stop{0};
  };
  sigset_t set_{};
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

// Until a signal; a second one ends the process at once.
void ServeUntilSignal(Signals& signals, Server& server, uint32_t drain_ms) {
  signals.WaitForStop();
  spdlog::info(
      "stopping: running requests have {} s (--drain-timeout); a "
      "second signal ends at once",
      drain_ms / 1000.0);
  server.Stop(drain_ms);
}

absl::Status SetUpLog(const ServeFlags& flags) {
  const auto level = spdlog::level::from_str(flags.log_level);
  if (level == spdlog::level::off && flags.log_level != "off")
    return absl::InvalidArgumentError(
        absl::StrCat("--log-level: '", flags.log_level, "' is none of trace debug info warning error off"));
  spdlog::set_default_logger(spdlog::stderr_color_mt("reprise"));  // stdout is for the banner
  spdlog::set_level(level);
  SetLogFormat(flags.log_json ? LogFormat::kJson : LogFormat::kText);
  return absl::OkStatus();
}

absl::Status Serve(const ServeFlags& flags) {
  const absl::Status log = SetUpLog(flags);
  if (!log.ok()) return log;
  const absl::StatusOr<Start> prepared = Prepare(flags);
  if (!prepared.ok()) return prepared.status();
  const Start& start = *prepared;
  Signals signals;

  auto server = Server::Start(start.server);  // before the model is loaded: a busy port costs no wait
  if (!server.ok() && !flags.dry_run) return server.status();
  const StartReport report =
      Report(flags, start, server.ok() ? (*server)->connections_max() : start.server.limits.connections_max,
             server.ok() ? (*server)->port() : start.server.port);
  std::fputs((flags.json ? BannerJson(report) : BannerText(report)).c_str(), stdout);
  std::fflush(stdout);
  if (flags.dry_run) return server.status();  // all of it is shown, and why it would not start

  auto local = LoadWithProgress(start.options);
  if (!local.ok()) return local.status();
  const std::unique_ptr<TextCodec> codec = MakeTextCodec((*local)->tokenizer(), (*local)->chat_template());
  signals.Serve();
  (*server)->Attach((*local)->engine(), *codec, start.names);
  const OpenedDisk disk{&(*local)->disk(), (*local)->engine().tier_stats().value_or(TierStats()).usage};
  if (flags.json) {
    std::printf("{\"model\": %s, \"ready\": %s, \"disk\": %s}\n", nlohmann::json(start.names[0]).dump().c_str(),
                nlohmann::json(report.address).dump().c_str(), OpenedDiskJson(disk).c_str());
  } else {
    std::fputs(OpenedDiskText(disk).c_str(), stdout);
    std::printf("ready       %s as \"%s\"\n", report.address.c_str(), start.names[0].c_str());
  }
  std::fflush(stdout);
  ServeUntilSignal(signals, **server, start.drain_ms);
  return absl::OkStatus();
}

}  // namespace

void AddServeCommand(CLI::App& app, int& status) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* command = app.add_subcommand("serve", "serve a model over an OpenAI-compatible API");
  flags->engine.AddTo(*command, /*disk_on=*/true);
  command->add_option("--host", flags->server.host, "address to listen on")->capture_default_str();
  command->add_option("--port", flags->server.port, "port to listen on; 0: any free one")
      ->capture_default_str()
      ->check(CLI::Range(0, 65535));
  command->add_option("--alias", flags->aliases, "a further name under which the model is served; may be repeated")
      ->expected(1)
      ->take_all();
  command->add_flag("--any-model", flags->server.any_model, "accept every model name in requests");
  command->add_option("--api-key-file", flags->api_key_file,
                      "a file of keys, one a line, of which clients must send one");
  command
      ->add_option("--cors", flags->server.cors_origins,
                   "a web origin such as https://chat.example.org whose pages "
                   "may ask, or *; may be repeated")
      ->expected(1)
      ->take_all();
  command
      ->add_option("--queue-requests", flags->queue_requests,
                   "requests that may wait; beyond, clients get 429 and when to retry")
      ->capture_default_str()
      ->check(CLI::Range(1, 65536));
  command->add_option("--shared-prefix", flags->shared_prefixes,
                      "a text file: chats with this system message share its cache, whoever asks; may be repeated");
  command->add_option("--drain-timeout", flags->drain_timeout, "what running requests have after SIGTERM, as in 30s")
      ->capture_default_str();
  command->add_option("--log-level", flags->log_level, "trace, debug, info, warning, error or off")
      ->capture_default_str();
  command->add_flag("--log-json", flags->log_json, "the log as JSON, an object a line");
  command
      ->add_flag("--log-traces", flags->server.log_traces,
                 "prefix ids of requests in the JSON log: what `reprise bench trace` replays, without a word of them")
      ->needs("--log-json");
  command->add_flag("--log-prompts", flags->server.log_prompts, "prompts in the log too, at level info");
  command->add_flag("--dry-run", flags->dry_run, "print what would be done and whether it could be, and stop");
  command->add_flag("--json", flags->json, "print JSON");
  command->callback([flags, &status] {
    const absl::Status served = Serve(*flags);
    if (!served.ok()) status = Report(served);
  });
}

}  // namespace reprise
