// Whether a start can work, and if not, three settings that would: each of them was planned before it is
// named.
//
// Ownership: values. Threads: any.
// Errors:    InvalidArgument: a context beyond the trained one, more memory than the machine has.
//            ResourceExhausted: does not fit, with the sum line by line and the settings.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/local_engine.h"
#include "env/machine.h"

namespace reprise {

// The settings that memory depends on; 0 is the default of each.
struct StartSettings {
  uint64_t memory_bytes = 0;
  uint32_t context = 0;
  ElementType kv_type = ElementType::kF16;
  uint32_t sequences = 32;
  uint32_t queue_requests = 256;
  friend bool operator==(const StartSettings&, const StartSettings&) = default;
};

// The flags, as typed, by which `settings` differ from `asked`: "--memory 512MiB --context 2048".
std::string FlagsFor(const StartSettings& settings, const StartSettings& asked);

// Whether these settings fit.
using SettingsPlanner = std::function<bool(const StartSettings&)>;

// Up to `count` different settings that fit, the mildest first: less of one thing, then more memory up to
// `memory_max_bytes`, then both. All of them passed `fits`. `context`: what `asked` comes to.
std::vector<StartSettings> SettingsThatFit(const StartSettings& asked, uint32_t context, uint64_t memory_max_bytes,
                                           const SettingsPlanner& fits, size_t count);

// What the server's buffers take with these settings and prompts of this many tokens.
using OtherBytes = std::function<uint64_t(const StartSettings&, uint32_t context)>;

// The plan of a start with these options. `other` is for what the caller takes besides the engine.
absl::StatusOr<MemoryPlan> PlanStart(const ModelDescription& model, LocalEngineOptions& options,
                                     const OtherBytes& other, const MachineInfo& machine);

}  // namespace reprise
