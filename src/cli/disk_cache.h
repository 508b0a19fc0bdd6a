// The cache directory of a start: where it is, how much it may take, who said so, and why there is none.
//
// Ownership: values. Threads: any.
// Errors:    InvalidArgument, naming the flag and what it accepts. What the place itself has against it (no permission,
//            no room) is a reason for none, not an error: everything is served all the same.
// Design:    docs/cache.md
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "cli/start_plan.h"
#include "engine/local_engine.h"
#include "env/file_system.h"

namespace reprise {

// As typed.
struct DiskFlags {
  std::string directory;       // --cache-dir; empty: CacheDirectory()
  std::string size;            // --cache-disk; empty: auto, or off where it is off by default
  std::string format = "raw";  // --cache-format
  bool on_by_default = true;   // false: off unless one of the first two is given

  void AddTo(CLI::App& app, bool on);
};

// $XDG_CACHE_HOME/reprise/kv, else ~/.cache/reprise/kv; empty where neither is known.
std::string CacheDirectory();

// Of the files in `directory` and in the directories in it; 0 without one.
uint64_t HeldBytes(FileSystem& files, const std::string& directory);

struct DiskChoice {
  DiskTierOptions options;  // without a directory: off
  std::string from;         // who set the cap
  bool automatic = true;    // the cap, so it may give way to the memory
  uint64_t held_bytes = 0;  // of all models, before the start
  std::string off;          // why there is none; empty: there is one
  bool as_asked = true;     // that there is none
};

// `default_directory`: CacheDirectory() but in tests.
absl::StatusOr<DiskChoice> ChooseDisk(const DiskFlags& flags, const Geometry& geometry, FileSystem& files,
                                      const std::string& default_directory);

// PlanStart with the disk tier that was chosen. One whose cap is automatic takes less, or is left out, where its memory
// would cost the start or a part of the context.
absl::StatusOr<MemoryPlan> PlanStartWithDisk(const ModelDescription& model, LocalEngineOptions& options,
                                             const OtherBytes& other, const MachineInfo& machine, DiskChoice& choice);

}  // namespace reprise
