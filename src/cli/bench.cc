// reprise bench: named workloads against a server of our own in this process and, in turn, a peer.
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/bench_trace.h"
#include "cli/commands.h"
#include "cli/model_open.h"
#include "cli/workloads.h"
#include "env/machine.h"
#include "server/server.h"

namespace reprise {
namespace {

struct BenchFlags {
  EngineFlags engine;
  std::vector<std::string> workloads;
  std::string against;
  std::vector<uint32_t> busy;
  WorkloadOptions workload;
};

// Processes that only compute, for as long as the object lives.
class BusyNeighbours {
 public:
  explicit BusyNeighbours(uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      const pid_t child = fork();
      if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (volatile uint64_t work = 0;;) work = work + 1;
      }
      if (child > 0) children_.push_back(child);
    }
  }
  ~BusyNeighbours() {
    for (pid_t child : children_) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
  }

 private:
  std::vector<pid_t> children_;
};

void PrintResult(const WorkloadResult& result, const std::vector<BenchTarget>& targets) {
  std::printf("%-44s", result.name.c_str());
  for (size_t t = 0; t < targets.size(); ++t) {
    if (result.values[t].empty()) continue;
    std::printf(result.unit == "x" ? "  %s %.2f %s" : "  %s %.1f %s", targets[t].name.c_str(), Median(result.values[t]),
                result.unit.c_str());
  }
  if (targets.size() == 2 && !result.values[0].empty() && result.values[0].size() == result.values[1].size()) {
    std::vector<double> ratios;
    for (size_t r = 0; r < result.values[0].size(); ++r) ratios.push_back(result.values[0][r] / result.values[1][r]);
    std::printf("  ratio %.2f (median of %zu pairs)", Median(ratios), ratios.size());
  }
  std::printf("\n");
  std::fflush(stdout);
}

// Decode alone and beside `count` busy processes, in turn; the share kept is held against a fair one.
absl::Status RunBusy(uint32_t count, const std::vector<BenchTarget>& targets, WorkloadOptions options, uint32_t cores) {
  const double fair = double(cores) / (cores + count);
  std::vector<std::vector<double>> shares(targets.size());
  const uint32_t repeat = std::exchange(options.repeat, 1);
  for (uint32_t r = 0; r < repeat; ++r) {
    const auto alone = RunWorkload("decode", targets, options);
    if (!alone.ok()) return alone.status();
    const BusyNeighbours neighbours(count);
    const auto beside = RunWorkload("decode", targets, options);
    if (!beside.ok()) return beside.status();
    for (size_t t = 0; t < targets.size(); ++t)
      shares[t].push_back((*beside)[0].values[t][0] / (*alone)[0].values[t][0]);
  }
  std::printf("%-44s", absl::StrCat("decode beside ", count, " busy processes, share kept").c_str());
  for (size_t t = 0; t < targets.size(); ++t)
    std::printf("  %s %.2f (%.2f of fair %.2f)", targets[t].name.c_str(), Median(shares[t]), Median(shares[t]) / fair,
                fair);
  std::printf("\n");
  std::fflush(stdout);
  return absl::OkStatus();
}

absl::Status Bench(const BenchFlags& flags) {
  absl::StatusOr<LocalEngineOptions> options = flags.engine.Resolve();
  if (!options.ok()) return options.status();
  signal(SIGPIPE, SIG_IGN);
  spdlog::set_level(spdlog::level::warn);  // a line per request would be most of the output
  ServerOptions server_options{.port = 0, .any_model = true};
  options->other_bytes = Server::Footprint(server_options.limits, options->context > 0 ? options->context : 32768);
  auto model = OpenModel(options->model_path, options->kv_type, options->adapters);
  if (!model.ok()) return model.status();
  const absl::StatusOr<DiskChoice> disk =
      ChooseDisk(flags.engine.disk, (*model)->geometry, RealFileSystem(), CacheDirectory());
  if (!disk.ok()) return disk.status();
  options->disk = disk->options;
  auto local = LoadWithProgress(*options);
  if (!local.ok()) return local.status();
  auto server = Server::Start(server_options);
  if (!server.ok()) return server.status();
  const std::unique_ptr<TextCodec> codec = MakeTextCodec((*local)->tokenizer(), (*local)->chat_template());
  (*server)->Attach((*local)->engine(), *codec, {"bench"});

  const MachineInfo machine = ReadMachineInfo();
  std::printf("machine  %s, %u cores, %s\n", machine.cpu.c_str(), machine.cores, machine.system.c_str());
  std::printf("commit   %s\n", REPRISE_COMMIT);
  std::printf("model    %s, %s, %u threads\n", (*local)->model().name.c_str(),
              std::string(Name((*local)->isa())).c_str(), (*local)->threads());
  std::vector<BenchTarget> targets = {{"reprise", absl::StrCat("http://127.0.0.1:", (*server)->port()), false}};
  if (!flags.against.empty()) targets.push_back({"peer", flags.against, true});
  if (!flags.against.empty()) std::printf("peer     %s\n", flags.against.c_str());

  WorkloadOptions workload = flags.workload;
  workload.vocab_size = (*local)->model().vocab_size;
  std::vector<std::string> names = flags.workloads;
  if (names.empty() && flags.busy.empty()) names = WorkloadNames();
  for (const std::string& name : names) {
    const auto results = RunWorkload(name, targets, workload);
    if (!results.ok()) return results.status();
    for (const WorkloadResult& result : *results) PrintResult(result, targets);
  }
  for (uint32_t count : flags.busy) {
    const absl::Status status = RunBusy(count, targets, workload, machine.cores);
    if (!status.ok()) return status;
  }
  (*server)->Stop(0);
  return absl::OkStatus();
}

}  // namespace

void AddBenchCommand(CLI::App& app, int& status) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* command = app.add_subcommand("bench", "measure named workloads, alone or in turn with another server");
  AddBenchTraceCommand(*command, status);
  flags->engine.AddTo(*command, /*disk_on=*/false);
  command->get_option("model")->required(false);  // a trace needs none
  command->add_option("workload", flags->workloads, "prefill, decode, repeat, shared-prefix (default: all)")
      ->check(CLI::IsMember(WorkloadNames()));
  command->add_option("--against", flags->against, "URL of a llama-server with the same model, measured in turn");
  command->add_option("--busy", flags->busy, "also decode beside this many processes that only compute");
  command->add_option("--prompt-tokens", flags->workload.prompt_tokens, "prefill and repeat: prompt length")
      ->capture_default_str();
  command->add_option("--reply-tokens", flags->workload.reply_tokens, "decode: reply length")
      ->capture_default_str()
      ->check(CLI::Range(2, 100000));
  command->add_option("--depth", flags->workload.depth, "decode: tokens of context before the reply")
      ->capture_default_str();
  command->add_option("--clients", flags->workload.clients, "shared-prefix: clients at once")->capture_default_str();
  command->add_option("--shared-tokens", flags->workload.shared_tokens, "shared-prefix: tokens in common")
      ->capture_default_str();
  command->add_option("--repeat", flags->workload.repeat, "repetitions; medians are printed")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  command->add_option("--seed", flags->workload.seed, "of the random prompts")->capture_default_str();
  command->callback([flags, command, &status] {
    if (!command->get_subcommands().empty()) return;
    const absl::Status run = flags->engine.model_path.empty()
                                 ? absl::InvalidArgumentError(
                                       "give a model (reprise bench MODEL.gguf), or a recorded "
                                       "trace (reprise bench trace FILE)")
                                 : Bench(*flags);
    if (!run.ok()) status = Report(run);
  });
}

}  // namespace reprise
