#include "cli/start_plan.h"

#include <algorithm>
#include <map>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"

namespace reprise {
namespace {

constexpr uint64_t kMemoryStep = 16ull << 20;  // memory is suggested in multiples of this
constexpr uint32_t kContextMin = 512;          // a shorter one is of no use to a conversation
constexpr size_t kSettingsNamed = 3;

// The shape of a small server: what one person at a terminal needs.
StartSettings Small(StartSettings settings) {
  settings.sequences = std::min(settings.sequences, 2u);
  settings.queue_requests = std::min(settings.queue_requests, 8u);
  return settings;
}

// The longest context that fits, halved from `context` on; 0: none.
uint32_t LongestContext(StartSettings settings, uint32_t context, const SettingsPlanner& fits) {
  for (uint32_t tokens = context / 2; tokens >= kContextMin; tokens /= 2) {
    settings.context = tokens;
    if (fits(settings)) return tokens;
  }
  return 0;
}

// The least memory that holds the settings, in steps; 0: more than `memory_max_bytes`.
uint64_t LeastMemory(StartSettings settings, uint64_t memory_max_bytes, const SettingsPlanner& fits) {
  uint64_t low = 0, high = memory_max_bytes / kMemoryStep;
  settings.memory_bytes = high * kMemoryStep;
  if (high == 0 || !fits(settings)) return 0;
  while (high - low > 1) {
    const uint64_t middle = low + (high - low) / 2;
    settings.memory_bytes = middle * kMemoryStep;
    (fits(settings) ? high : low) = middle;
  }
  return high * kMemoryStep;
}

LocalEngineOptions WithSettings(LocalEngineOptions options, const StartSettings& settings, const OtherBytes& other,
                                uint32_t context_trained) {
  options.memory_bytes = settings.memory_bytes;
  options.context = settings.context;
  options.kv_type = settings.kv_type;
  options.sequences_max = settings.sequences;
  options.queue_requests_max = settings.queue_requests;
  options.other_bytes = other(settings, settings.context > 0 ? settings.context : context_trained);
  return options;
}

// Plans settings for a model; another K/V type is another geometry, so its description is read once.
class Planner {
 public:
  Planner(const ModelDescription& model, const LocalEngineOptions& options, const OtherBytes& other)
      : model_(model), options_(options), other_(other) {}

  bool Fits(const StartSettings& settings) {
    const ModelDescription* model = DescriptionFor(settings.kv_type);
    return model != nullptr &&
           LocalEngine::Plan(*model, WithSettings(options_, settings, other_, model_.context_trained)).ok();
  }

 private:
  const ModelDescription* DescriptionFor(ElementType type) {
    if (type == options_.kv_type) return &model_;
    auto [at, added] = others_.try_emplace(type);
    if (added) {
      auto model =
          ModelDescription::Read(model_.path, {.key_type = type, .value_type = type, .adapters = options_.adapters});
      if (model.ok()) at->second = *std::move(model);
    }
    return at->second.get();
  }

  const ModelDescription& model_;
  const LocalEngineOptions& options_;
  const OtherBytes& other_;
  std::map<ElementType, std::unique_ptr<ModelDescription>> others_;
};

absl::Status CheckWishes(const ModelDescription& model, const LocalEngineOptions& options, const MachineInfo& machine) {
  if (options.context > model.context_trained)
    return absl::InvalidArgumentError(
        absl::StrCat("--context ", options.context, ": this model was trained for ", model.context_trained,
                     " tokens and writes nonsense beyond; give --context ", model.context_trained, " or less"));
  const bool grouped = machine.memory_limit_bytes > 0 && machine.memory_limit_bytes < machine.memory_total_bytes;
  const uint64_t most = grouped ? machine.memory_limit_bytes : machine.memory_total_bytes;
  if (most > 0 && options.memory_bytes > most)
    return absl::InvalidArgumentError(absl::StrCat("--memory ", HumanBytes(options.memory_bytes), " is more than ",
                                                   grouped ? "the control group may have" : "this machine has", " (",
                                                   HumanBytes(most), "); without --memory it is ",
                                                   HumanBytes(DefaultMemoryBytes(machine)), " now"));
  return absl::OkStatus();
}

}  // namespace

std::string FlagsFor(const StartSettings& settings, const StartSettings& asked) {
  std::string text;
  const auto add = [&text](auto... parts) { absl::StrAppend(&text, text.empty() ? "" : " ", parts...); };
  if (settings.memory_bytes != asked.memory_bytes) add("--memory ", settings.memory_bytes >> 20, "MiB");
  if (settings.context != asked.context) add("--context ", settings.context);
  if (settings.kv_type != asked.kv_type) add("--kv-type ", std::string(Name(settings.kv_type)));
  if (settings.sequences != asked.sequences) add("--sequences ", settings.sequences);
  if (settings.queue_requests != asked.queue_requests) add("--queue-requests ", settings.queue_requests);
  return text;
}

std::vector<StartSettings> SettingsThatFit(const StartSettings& asked, uint32_t context, uint64_t memory_max_bytes,
                                           const SettingsPlanner& fits, size_t count) {
  std::vector<StartSettings> found;
  const auto offer = [&](const StartSettings& settings) {
    if (found.size() < count && settings != asked && std::count(found.begin(), found.end(), settings) == 0 &&
        fits(settings))
      found.push_back(settings);
  };
  const auto offer_shorter = [&](StartSettings settings) {
    settings.context = LongestContext(settings, context, fits);
    if (settings.context > 0) offer(settings);
  };
  const auto offer_memory = [&](StartSettings settings) {
    settings.memory_bytes = LeastMemory(settings, memory_max_bytes, fits);
    if (settings.memory_bytes > 0) offer(settings);
  };
  StartSettings narrow = asked;
  narrow.kv_type = ElementType::kF16;
  offer(narrow);
  offer(Small(asked));
  offer_shorter(asked);
  if (found.size() == count) found.pop_back();  // more memory is always worth a line
  StartSettings full = asked;
  full.context = context;
  offer_memory(asked.context > 0 ? asked : full);
  offer_shorter(Small(narrow));
  StartSettings shorter = Small(narrow);
  for (const uint32_t tokens : {context / 4, kContextMin}) {
    if (tokens < kContextMin) continue;
    shorter.context = std::min(tokens, context);
    offer_memory(shorter);
  }
  offer_memory(Small(full));
  return found;
}

absl::StatusOr<MemoryPlan> PlanStart(const ModelDescription& model, LocalEngineOptions& options,
                                     const OtherBytes& other, const MachineInfo& machine) {
  const absl::Status wishes = CheckWishes(model, options, machine);
  if (!wishes.ok()) return wishes;
  StartSettings asked{.memory_bytes = options.memory_bytes,
                      .context = options.context,
                      .kv_type = options.kv_type,
                      .sequences = options.sequences_max,
                      .queue_requests = options.queue_requests_max};
  options = WithSettings(options, asked, other, model.context_trained);
  absl::StatusOr<MemoryPlan> plan = LocalEngine::Plan(model, options);
  if (plan.ok() || !absl::IsResourceExhausted(plan.status())) return plan;

  Planner planner(model, options, other);
  const uint32_t context = options.context > 0 ? options.context : model.context_trained;
  const uint64_t most = machine.memory_limit_bytes > 0 && machine.memory_limit_bytes < machine.memory_total_bytes
                            ? machine.memory_limit_bytes
                            : machine.memory_total_bytes;
  std::string text(plan.status().message());
  const std::vector<StartSettings> settings = SettingsThatFit(
      asked, context, most, [&planner](const StartSettings& s) { return planner.Fits(s); }, kSettingsNamed);
  absl::StrAppend(&text, settings.empty() ? "no setting would do on this machine: take a smaller model, or the same "
                                            "one with fewer bits per weight"
                                          : "settings that would work, each checked:");
  for (const StartSettings& s : settings) absl::StrAppend(&text, "\n  ", FlagsFor(s, asked));
  return absl::ResourceExhaustedError(text);
}

}  // namespace reprise
