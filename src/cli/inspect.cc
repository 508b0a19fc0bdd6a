// reprise inspect: what a GGUF file holds, and whether and how it can be served; and, in inspect_tier.cc, what a file
// of the disk tier holds.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "cli/commands.h"
#include "cli/model_open.h"

namespace reprise {
namespace {

struct InspectFlags {
  std::string path;
  bool json = false;
  bool tensors = false;
};

nlohmann::json ToJson(const ModelDescription& model, bool tensors) {
  nlohmann::json out = {{"path", model.path},
                        {"name", model.name},
                        {"family", model.family_name},
                        {"parameters", model.parameters},
                        {"file_bytes", model.file_bytes},
                        {"context_trained", model.context_trained},
                        {"vocab_size", model.vocab_size},
                        {"layers", model.layers},
                        {"width", model.width},
                        {"feed_forward", model.feed_forward},
                        {"query_heads", model.query_heads},
                        {"kv_heads", model.kv_heads},
                        {"head_dim", model.head_dim},
                        {"block_tokens", model.geometry.block_tokens},
                        {"tokenizer_digest", "sha256:" + model.identity.tokenizer.Hex()}};
  for (const WeightTypeCount& count : model.weight_types)
    out["weights"].push_back({{"type", std::string(Name(count.type))},
                              {"tensors", count.tensors},
                              {"bytes", count.bytes},
                              {"kernel", HasKernel(count.type) ? "reprise" : "ggml"}});
  for (uint32_t g = 0; g < model.geometry.groups.size(); ++g) {
    const LayerGroup& group = model.geometry.groups[g];
    out["groups"].push_back({{"kind", std::string(Name(group.kind))},
                             {"layers", group.layers.size()},
                             {"window", group.window},
                             {"kv_bytes_per_token", BytesPerToken(model.geometry, GroupId(g))}});
  }
  if (tensors)
    for (const TensorSource& tensor : model.tensors)
      out["tensors"].push_back({{"name", tensor.name},
                                {"type", std::string(Name(tensor.type))},
                                {"rows", tensor.rows},
                                {"cols", tensor.cols},
                                {"offset", tensor.offset},
                                {"bytes", tensor.bytes}});
  return out;
}

void Print(const ModelDescription& model, bool tensors) {
  std::printf("%s\n", model.path.c_str());
  std::printf("name         %s\n", model.name.c_str());
  std::printf("family       %s, %.1f M parameters, %s\n", model.family_name.c_str(), model.parameters / 1e6,
              HumanBytes(model.file_bytes).c_str());
  std::printf("shape        %u layers, width %u, feed-forward %u, heads %u/%u of %u, vocabulary %u\n", model.layers,
              model.width, model.feed_forward, model.query_heads, model.kv_heads, model.head_dim, model.vocab_size);
  std::printf("context      %u tokens as trained\n", model.context_trained);
  for (const WeightTypeCount& count : model.weight_types)
    std::printf("weights      %-5s %4u tensors, %9s, multiplied by %s\n", std::string(Name(count.type)).c_str(),
                count.tensors, HumanBytes(count.bytes).c_str(), HasKernel(count.type) ? "our kernel" : "ggml");
  for (uint32_t g = 0; g < model.geometry.groups.size(); ++g) {
    const LayerGroup& group = model.geometry.groups[g];
    std::printf("K and V      %-6s %zu layers, %s per token (computed)", std::string(Name(group.kind)).c_str(),
                group.layers.size(), HumanBytes(BytesPerToken(model.geometry, GroupId(g))).c_str());
    if (group.window > 0) std::printf(", window %u", group.window);
    std::printf("\n");
  }
  std::printf("blocks       %u tokens\n", model.geometry.block_tokens);
  std::printf("tokenizer    sha256:%s\n", model.identity.tokenizer.Hex().c_str());
  if (!tensors) return;
  for (const TensorSource& tensor : model.tensors)
    std::printf("tensor       %-36s %-5s [%u, %u] at %lu\n", tensor.name.c_str(),
                std::string(Name(tensor.type)).c_str(), tensor.rows, tensor.cols,
                static_cast<unsigned long>(tensor.offset));
}

}  // namespace

void AddInspectCommand(CLI::App& app, int& status) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* command = app.add_subcommand(
      "inspect", "show what a GGUF file holds and whether it can be served, or a file of the disk tier");
  command->add_option("model", flags->path, "the model, a GGUF file");
  command->add_flag("--json", flags->json, "print JSON");
  command->add_flag("--tensors", flags->tensors, "list every tensor");
  AddInspectTierCommands(*command, status);
  command->callback([flags, command, &status] {
    if (!command->get_subcommands().empty()) return;
    if (flags->path.empty()) throw CLI::RequiredError("model");
    const auto model = OpenModel(flags->path, ElementType::kF16, {});
    if (!model.ok()) {
      status = Report(model.status());
      return;
    }
    if (flags->json) {
      std::printf("%s\n", ToJson(**model, flags->tensors).dump(2).c_str());
    } else {
      Print(**model, flags->tensors);
    }
  });
}

}  // namespace reprise
