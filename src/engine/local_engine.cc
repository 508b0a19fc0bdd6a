#include "engine/local_engine.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "env/machine.h"
#include "env/pages.h"
#include "prefix/namespace.h"

namespace reprise {
namespace {

// Of the pools, before the first request: what a restored conversation of a few thousand tokens is read to. 30 ms on a
// machine of its own, up to half a second in a virtual one.
constexpr double kPopulatedBytes = 256 << 20;

uint64_t Sum(const std::vector<Footprint>& lines) {
  return std::accumulate(lines.begin(), lines.end(), uint64_t{0},
                         [](uint64_t sum, const Footprint& line) { return sum + line.bytes; });
}

void Append(std::vector<Footprint>& lines, std::vector<Footprint> more) {
  lines.insert(lines.end(), more.begin(), more.end());
}

uint32_t Threads(const LocalEngineOptions& options) {
  return options.threads > 0 ? options.threads : ReadMachineInfo().cores;
}

SchedulerOptions SchedulerFor(const LocalEngineOptions& options, uint32_t context) {
  return {.sequences_max = options.sequences_max,
          .step_rows_max = options.step_rows_max,
          .shared_rows_max = options.shared_rows_max,
          .context_max = context,
          .queue_requests_max = options.queue_requests_max,
          .queue_tokens_max = options.queue_tokens_max};
}

ForwardOptions ForwardFor(const LocalEngineOptions& options, uint32_t context) {
  return {.context_max = context,
          .batch_rows_max = options.step_rows_max,
          .logits_rows_max = options.sequences_max,
          .slices_max = options.sequences_max,
          .threads = Threads(options)};
}

KvCacheOptions CacheFor(const ModelDescription& model, const LocalEngineOptions& options, uint32_t context) {
  KvCacheOptions cache;
  cache.geometry = model.geometry;
  cache.identity = model.identity;
  cache.sequences_max = options.sequences_max;
  cache.context_max = context;
  cache.in_flight_max = options.step_rows_max;
  cache.shuffle_seed = options.shuffle_seed;
  cache.shared_prefixes = options.shared_prefixes;
  cache.tiered = !options.disk.directory.empty();
  if (options.tier_patience_ms) cache.tier_patience_ms = *options.tier_patience_ms;
  cache.tier_readers = kDiskTierReaders;
  return cache;
}

// Everything but the KV cache, for a context.
std::vector<Footprint> FixedLines(const ModelDescription& model, const LocalEngineOptions& options, uint32_t context) {
  std::vector<Footprint> lines = ModelWeights::Footprints(model);
  lines.push_back({"tokenizer", Tokenizer::EstimateBytes(model.path)});
  Append(lines, ForwardPass::Footprints(model, ForwardFor(options, context)));
  Append(lines, TextEngine::Footprints(SchedulerFor(options, context), model.vocab_size));
  if (!options.disk.directory.empty()) Append(lines, DiskTierFootprints(options.disk, model.geometry));
  if (options.other_bytes > 0) lines.push_back({"server", options.other_bytes});
  lines.push_back({"runtime", LocalEngine::kRuntimeBytes});
  return lines;
}

// Slots for a context, or why not.
absl::StatusOr<MemoryPlan> PlanFor(const ModelDescription& model, const LocalEngineOptions& options,
                                   uint64_t memory_bytes, uint32_t context) {
  MemoryPlan plan{.memory_bytes = memory_bytes, .context = context};
  plan.lines = FixedLines(model, options, context);
  const uint64_t fixed = Sum(plan.lines);
  KvCacheOptions cache = CacheFor(model, options, context);
  if (fixed >= memory_bytes)
    return absl::ResourceExhaustedError(
        absl::StrCat("everything but the KV cache takes ", HumanBytes(fixed), " of ", HumanBytes(memory_bytes)));
  const absl::StatusOr<std::vector<uint32_t>> slots = KvCache::PlanSlots(cache, memory_bytes - fixed);
  if (!slots.ok()) return slots.status();
  plan.slots = cache.slots = *slots;
  Append(plan.lines, KvCache::Footprints(cache));
  for (uint32_t g = 0; g < model.geometry.groups.size(); ++g)
    if (model.geometry.groups[g].kind == GroupKind::kFull)
      plan.pool_tokens = uint64_t{plan.slots[g]} * model.geometry.block_tokens;
  return plan;
}

// The sum that is too large, a line each. What would work instead is the caller's to say: it has the flags.
absl::Status DoesNotFit(const ModelDescription& model, const LocalEngineOptions& options, uint64_t memory_bytes,
                        uint32_t context, const absl::Status& reason) {
  std::string text =
      absl::StrCat("this does not fit into ", HumanBytes(memory_bytes), ": ", std::string(reason.message()), "\n");
  for (const Footprint& line : FixedLines(model, options, context))
    absl::StrAppend(&text, "  ", line.component, ": ", HumanBytes(line.bytes), "\n");
  return absl::ResourceExhaustedError(text);
}

// The slots that are used first, of every group its part.
void PopulatePools(const KvCache& cache) {
  const std::vector<KvCache::GroupStats> groups = cache.stats().groups;
  const auto bytes = [&](size_t g) { return static_cast<double>(groups[g].slots_total * groups[g].slot_bytes); };
  double total = 0;
  for (size_t g = 0; g < groups.size(); ++g) total += bytes(g);
  const double share = std::min(1.0, kPopulatedBytes / total);
  for (size_t g = 0; g < groups.size(); ++g)
    (void)PopulatePages({cache.group_views()[g].base, static_cast<size_t>(share * bytes(g))});
}

}  // namespace

uint64_t MemoryPlan::total_bytes() const { return Sum(lines); }

absl::StatusOr<MemoryPlan> LocalEngine::Plan(const ModelDescription& model, const LocalEngineOptions& options) {
  const MachineInfo machine = ReadMachineInfo();
  const uint64_t memory = options.memory_bytes > 0 ? options.memory_bytes : DefaultMemoryBytes(machine);
  const uint32_t trained = model.context_trained;
  uint32_t context = options.context > 0 ? options.context : trained;
  std::string context_from = options.context > 0 ? "--context" : "the model";
  absl::StatusOr<MemoryPlan> plan = PlanFor(model, options, memory, context);
  // Without a wish of the user's the context gives way to the memory.
  while (!plan.ok() && options.context == 0 && context > 512) {
    context /= 2;
    context_from = "the memory";
    plan = PlanFor(model, options, memory, context);
  }
  if (!plan.ok()) return DoesNotFit(model, options, memory, context, plan.status());
  plan->context_from = context_from;
  if (!options.disk.directory.empty()) plan->disk_bytes = options.disk.bytes_max;
  plan->memory_from = options.memory_bytes > 0                              ? "--memory"
                      : memory == machine.memory_available_bytes / 100 * 90 ? "90 % of what is free now"
                      : machine.memory_limit_bytes > 0 && machine.memory_limit_bytes < machine.memory_total_bytes
                          ? "90 % of the control group's limit"
                          : "half of the machine";
  return plan;
}

absl::StatusOr<std::unique_ptr<LocalEngine>> LocalEngine::Load(const LocalEngineOptions& options,
                                                               const Progress& progress) {
  auto model = ModelDescription::Read(
      options.model_path, {.key_type = options.kv_type, .value_type = options.kv_type, .adapters = options.adapters});
  if (!model.ok()) return model.status();
  absl::StatusOr<MemoryPlan> plan = Plan(**model, options);
  if (!plan.ok()) return plan.status();

  std::unique_ptr<LocalEngine> local(new LocalEngine());
  local->plan_ = *std::move(plan);
  local->isa_ = options.isa.value_or(BestIsa());
  local->model_ = *std::move(model);
  local->ledger_ = std::make_unique<Ledger>(local->plan_.memory_bytes);
  local->pool_ = std::make_unique<WorkerPool>(Threads(options));
  const ModelDescription& description = *local->model_;
  local->battery_ = RunBattery(description, {local->pool_.get(), local->isa_});
  Ledger& ledger = *local->ledger_;
  const uint64_t staging = ModelWeights::StagingBytes(description, local->pool_->threads());
  if (!ledger.Fits(Sum(ModelWeights::Footprints(description)) + staging))
    return absl::ResourceExhaustedError(
        absl::StrCat("reading the weights takes ", HumanBytes(staging), " for a moment, more than --memory leaves"));

  auto weights = ModelWeights::Load(description, *local->pool_, ledger, progress);
  if (!weights.ok()) return weights.status();
  local->weights_ = *std::move(weights);
  auto tokenizer = Tokenizer::Load(options.model_path, ledger);
  if (!tokenizer.ok()) return tokenizer.status();
  local->tokenizer_ = *std::move(tokenizer);
  auto chat_template = ChatTemplate::Load(*local->tokenizer_, options.chat_template);
  if (chat_template.ok()) {
    local->chat_template_ = *std::move(chat_template);
  } else if (!absl::IsFailedPrecondition(chat_template.status())) {  // a base model is served without chat
    return chat_template.status();
  }

  KvCacheOptions cache_options = CacheFor(description, options, local->plan_.context);
  cache_options.identity = local->weights_->identity();
  cache_options.identity.numerics += local->battery_.numerics;
  cache_options.slots = local->plan_.slots;
  local->OpenDisk(options.disk, cache_options, ledger);
  cache_options.tier = local->tier_.get();
  auto cache = std::make_unique<KvCache>(cache_options, ledger);
  local->forward_ =
      std::make_unique<ForwardPass>(description, *local->weights_, ForwardFor(options, local->plan_.context),
                                    cache->group_views(), Compute{local->pool_.get(), local->isa_}, ledger);
  if (local->tier_ != nullptr) local->WarmUp(*cache);
  local->engine_ = std::make_unique<TextEngine>(SchedulerFor(options, local->plan_.context), std::move(cache),
                                                *local->forward_, *local->tokenizer_, ledger);
  return local;
}

// Without the disk everything is served all the same: what is wrong with it is said, not returned.
void LocalEngine::OpenDisk(const DiskTierOptions& options, const KvCacheOptions& cache, Ledger& ledger) {
  if (options.directory.empty()) return;
  const NamespaceDigests digests = DeriveNamespace(cache.identity, cache.geometry, {});
  Sha256 name;
  name.Update(std::as_bytes(std::span(digests.tag(NamespaceTag::kModel)->bytes)));
  name.Update(std::as_bytes(std::span(digests.tag(NamespaceTag::kGeometry)->bytes)));
  disk_.directory = absl::StrCat(options.directory, "/", name.Finish().Hex().substr(0, 16));
  DiskTierOptions mine = options;
  mine.directory = disk_.directory;
  absl::StatusOr<DiskTier> opened = OpenDiskTier(mine, cache.geometry, ledger);
  if (!opened.ok()) {
    disk_.error = std::string(opened.status().message());
    return;
  }
  tier_ = std::move(opened->tier);
  disk_.opened = std::move(*opened);
}

// The first steps and the first reads of a start are slow: memory is touched for the first time. Done here they are
// nobody's, and the cache knows what computing takes before it has to weigh it against reading.
void LocalEngine::WarmUp(KvCache& cache) {
  PopulatePools(cache);
  constexpr uint32_t kRows = 32;
  const uint32_t rows = std::min({kRows, plan_.context, forward_->batch_rows_max()});
  const std::vector<TokenId> tokens(rows);
  for (int run = 0; run < 2; ++run) {
    CacheSequence sequence;
    const NamespaceDigests name_space = cache.Namespace({});
    if (cache.Admit({.name_space = name_space, .prompt = tokens, .tokens_max = rows, .read = false, .write = false},
                    sequence) != KvCache::Outcome::kAdmitted)
      return;
    sequence.Prepare(rows);
    const BatchSlice slice{.tokens = tokens, .tables = sequence.tables(), .logits_rows = 1};
    const auto start = std::chrono::steady_clock::now();
    if (!forward_->Run({std::span(&slice, 1)}).ok()) return;  // a request will find it out, and say so
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (run > 0) cache.ObservePrefill(rows, rows * (rows - 1) / 2.0, took.count());
  }
}

LocalEngine::~LocalEngine() = default;

}  // namespace reprise
