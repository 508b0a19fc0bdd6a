// The subcommands of the one binary. Each adds itself to the app, with its options, and leaves its exit
// status in `status` when it was chosen and has run.
//
// Exit status: 0 done, 1 failed, 2 wrong usage, 3 damaged data found (SCHEMA 1).
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/disk_cache.h"
#include "engine/local_engine.h"

namespace reprise {

void AddServeCommand(CLI::App& app, int& status);
void AddChatCommand(CLI::App& app, int& status);
void AddInspectCommand(CLI::App& app, int& status);
void AddInspectTierCommands(CLI::App& inspect, int& status);  // record, segment
void AddBenchCommand(CLI::App& app, int& status);
void AddCacheCommand(CLI::App& app, int& status);

// The options of every command that loads a model, as typed; `Resolve` checks them.
struct EngineFlags {
  std::string model_path;
  std::string memory;
  uint32_t context = 0;
  uint32_t threads = 0;
  uint32_t sequences = 0;
  std::string kv_type = "f16";
  std::string isa;
  std::string chat_template_path;
  std::vector<std::string> loras;  // FILE or FILE:SCALE
  DiskFlags disk;                  // not in what Resolve gives: ChooseDisk needs the model

  // `disk_on`: the cache directory is used where nobody says otherwise.
  void AddTo(CLI::App& app, bool disk_on);
  // InvalidArgument names the option and what it accepts.
  absl::StatusOr<LocalEngineOptions> Resolve() const;
};

// Prints "reprise: message" to stderr and returns the exit status of the error's kind.
int Report(const absl::Status& status);

// Loads with a progress line on stderr where that is a terminal, a line per tenth elsewhere.
absl::StatusOr<std::unique_ptr<LocalEngine>> LoadWithProgress(const LocalEngineOptions& options);

}  // namespace reprise
