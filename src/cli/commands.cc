#include "cli/commands.h"

#include <unistd.h>

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/text.h"
#include "cli/flag_values.h"

namespace reprise {
namespace {

constexpr size_t kTemplateBytesMax = 1 << 20;  // models' own have up to 20 kB

}  // namespace

void EngineFlags::AddTo(CLI::App& app, bool disk_on) {
  app.add_option("model", model_path, "the model, a GGUF file")->required();
  app.add_option("--memory", memory,
                 "what the process may take, as in 6GiB (default: from the control group or machine)");
  app.add_option("--context", context, "tokens of one conversation (default: as the model was trained, or what fits)")
      ->check(CLI::Range(1u, 1u << 30));
  app.add_option("--threads", threads, "compute threads (default: one per core)")->check(CLI::Range(1, 256));
  app.add_option("--sequences", sequences, "replies computed at the same time (default: 32)")
      ->check(CLI::Range(1, 256));
  app.add_option("--kv-type", kv_type, "element type of K and V: f16, bf16 or f32")->capture_default_str();
  app.add_option("--isa", isa, "instruction set: portable, avx2 or avx512 (default: the best; the bits are the same)");
  app.add_option("--chat-template", chat_template_path, "a Jinja file to use instead of the model's own template");
  app.add_option("--lora", loras, "a LoRA adapter, FILE or FILE:SCALE, for requests that do not say; may be repeated")
      ->expected(1)
      ->take_all();
  disk.AddTo(app, disk_on);
}

absl::StatusOr<LocalEngineOptions> EngineFlags::Resolve() const {
  LocalEngineOptions options;
  options.model_path = model_path;
  options.context = context;
  options.threads = threads;
  if (sequences > 0) options.sequences_max = sequences;
  if (!memory.empty()) {
    const absl::StatusOr<uint64_t> bytes = ParseBytes(memory);
    if (!bytes.ok())
      return absl::InvalidArgumentError(absl::StrCat("--memory: ", std::string(bytes.status().message())));
    options.memory_bytes = *bytes;
  }
  bool known = false;
  for (ElementType type : {ElementType::kF16, ElementType::kBf16, ElementType::kF32}) {
    if (kv_type != Name(type)) continue;
    options.kv_type = type;
    known = true;
  }
  if (!known) return absl::InvalidArgumentError(absl::StrCat("--kv-type: '", kv_type, "' is none of f16, bf16, f32"));
  if (!isa.empty()) {
    const absl::StatusOr<Isa> parsed = ParseIsa(isa);
    if (!parsed.ok())
      return absl::InvalidArgumentError(absl::StrCat("--isa: ", std::string(parsed.status().message())));
    options.isa = *parsed;
  }
  if (!chat_template_path.empty()) {
    const absl::StatusOr<std::string> text = ReadTextFile("--chat-template", chat_template_path, kTemplateBytesMax);
    if (!text.ok()) return text.status();
    options.chat_template = *text;
  }
  for (const std::string& lora : loras) options.adapters.push_back(ParseLora(lora));
  return options;
}

int Report(const absl::Status& status) {
  std::fprintf(stderr, "reprise: %s\n", WithoutControls(std::string(status.message())).c_str());
  return absl::IsInvalidArgument(status) ? 2 : absl::IsDataLoss(status) ? 3 : 1;
}

absl::StatusOr<std::unique_ptr<LocalEngine>> LoadWithProgress(const LocalEngineOptions& options) {
  const bool terminal = isatty(STDERR_FILENO) != 0;
  int shown = -1;
  auto engine = LocalEngine::Load(options, [&](double fraction) {
    const int percent = static_cast<int>(fraction * 100);
    if (percent == shown || (!terminal && percent / 10 == shown / 10 && shown >= 0)) return;
    shown = percent;
    std::fprintf(stderr,
                 terminal ? "\rreading and packing the weights: %d %% " : "reading and packing the weights: %d %%\n",
                 percent);
  });
  if (terminal && shown >= 0) std::fprintf(stderr, "\n");
  return engine;
}

}  // namespace reprise
