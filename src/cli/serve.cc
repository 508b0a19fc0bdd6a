// reprise serve: one model over HTTP until SIGTERM or Ctrl-C; a second signal ends it at once.
#include <pthread.h>
#include <signal.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "cli/commands.h"
#include "env/machine.h"
#include "server/server.h"

namespace reprise {
namespace {

constexpr uint32_t kDrainMilliseconds = 30'000;

struct ServeFlags {
  EngineFlags engine;
  ServerOptions server;
  std::vector<std::string> aliases;
  std::string log_level = "info";
  bool dry_run = false;
};

std::string Stem(const std::string& path) {
  const std::string file = path.substr(path.find_last_of('/') + 1);
  const size_t dot = file.rfind(".gguf");
  return dot == std::string::npos || dot == 0 ? file : file.substr(0, dot);
}

// What was decided, and by whom.
void PrintBanner(const ModelDescription& model, const MemoryPlan& plan, Isa isa, uint32_t threads,
                 const ServerOptions& server) {
  std::string weights;
  for (const WeightTypeCount& count : model.weight_types)
    absl::StrAppend(&weights, weights.empty() ? "" : ", ", std::string(Name(count.type)), " ", HumanBytes(count.bytes));
  std::printf("model       %s (%s, %.0f M parameters)\n", model.name.c_str(), model.family_name.c_str(),
              model.parameters / 1e6);
  std::printf("weights     %s\n", weights.c_str());
  std::printf("arithmetic  %s, exact; %u threads\n", std::string(Name(isa)).c_str(), threads);
  std::printf("context     %u tokens (set by %s; trained %u)\n", plan.context, plan.context_from.c_str(),
              model.context_trained);
  std::printf("K and V     %s, blocks of %u tokens; the pool holds %lu tokens\n",
              std::string(Name(model.geometry.key_type)).c_str(), model.geometry.block_tokens,
              static_cast<unsigned long>(plan.pool_tokens));
  std::printf("memory      %s of %s (set by %s)\n", HumanBytes(plan.total_bytes()).c_str(),
              HumanBytes(plan.memory_bytes).c_str(), plan.memory_from.c_str());
  for (const Footprint& line : plan.lines)
    std::printf("            %10s  %s\n", HumanBytes(line.bytes).c_str(), line.component.c_str());
  std::printf("limits      %u connections, %u requests at once, %s per body\n", server.limits.connections_max,
              server.limits.requests_max, HumanBytes(server.limits.body_bytes_max).c_str());
  std::fflush(stdout);
}

absl::Status Serve(const ServeFlags& flags) {
  absl::StatusOr<LocalEngineOptions> options = flags.engine.Resolve();
  if (!options.ok()) return options.status();
  const auto level = spdlog::level::from_str(flags.log_level);
  if (level == spdlog::level::off && flags.log_level != "off")
    return absl::InvalidArgumentError(
        absl::StrCat("--log-level: '", flags.log_level, "' is none of trace debug info warning error off"));
  spdlog::set_default_logger(spdlog::stderr_color_mt("reprise"));  // stdout is for the banner
  spdlog::set_level(level);

  auto model =
      ModelDescription::Read(options->model_path, {.key_type = options->kv_type, .value_type = options->kv_type});
  if (!model.ok()) return model.status();
  options->other_bytes =
      Server::Footprint(flags.server.limits, options->context > 0 ? options->context : (*model)->context_trained);
  const absl::StatusOr<MemoryPlan> plan = LocalEngine::Plan(**model, *options);
  if (!plan.ok()) return plan.status();
  PrintBanner(**model, *plan, options->isa.value_or(BestIsa()),
              options->threads > 0 ? options->threads : ReadMachineInfo().cores, flags.server);
  if (flags.dry_run) return absl::OkStatus();

  // Signals are taken by this thread alone; threads started from here on inherit the mask.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);

  auto server = Server::Start(flags.server);  // before the model is loaded: a busy port costs no wait
  if (!server.ok()) return server.status();
  auto local = LoadWithProgress(*options);
  if (!local.ok()) return local.status();
  std::vector<std::string> names = {Stem(options->model_path)};
  names.insert(names.end(), flags.aliases.begin(), flags.aliases.end());
  const std::unique_ptr<TextCodec> codec = MakeTextCodec((*local)->tokenizer(), (*local)->chat_template());
  (*server)->Attach((*local)->engine(), *codec, names);
  std::printf("ready       http://%s:%u/v1 as \"%s\"\n", flags.server.host.c_str(), (*server)->port(),
              names[0].c_str());
  std::fflush(stdout);

  int signal = 0;
  sigwait(&signals, &signal);
  spdlog::info("stopping: running requests have {} s; a second signal ends at once", kDrainMilliseconds / 1000);
  std::thread second([&signals] {
    int again = 0;
    sigwait(&signals, &again);
    std::_Exit(1);
  });
  second.detach();
  (*server)->Stop(kDrainMilliseconds);
  return absl::OkStatus();
}

}  // namespace

void AddServeCommand(CLI::App& app, int& status) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* command = app.add_subcommand("serve", "serve a model over an OpenAI-compatible API");
  flags->engine.AddTo(*command);
  command->add_option("--host", flags->server.host, "address to listen on")->capture_default_str();
  command->add_option("--port", flags->server.port, "port to listen on; 0: any free one")->capture_default_str();
  command->add_option("--alias", flags->aliases, "further names under which the model is served");
  command->add_flag("--any-model", flags->server.any_model, "accept every model name in requests");
  command->add_option("--log-level", flags->log_level, "trace, debug, info, warning, error or off")
      ->capture_default_str();
  command->add_flag("--dry-run", flags->dry_run, "print what would be done, and stop");
  command->callback([flags, &status] {
    const absl::Status served = Serve(*flags);
    if (!served.ok()) status = Report(served);
  });
}

}  // namespace reprise
