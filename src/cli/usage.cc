#include "cli/usage.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"

namespace reprise {
namespace {

// What people type who come from other servers; docs/flags.md has the whole map.
struct ForeignFlag {
  std::string_view theirs;
  std::string_view advice;
};
constexpr std::array kForeignFlags = std::to_array<ForeignFlag>({
    {"-m", "give the file itself: reprise serve MODEL.gguf"},
    {"--model", "give the file itself: reprise serve MODEL.gguf"},
    {"-hf", "give a file of this machine: reprise serve MODEL.gguf"},
    {"--hf-repo", "give a file of this machine: reprise serve MODEL.gguf"},
    {"-c", "here it is --context"},
    {"--ctx-size", "here it is --context"},
    {"--max-model-len", "here it is --context"},
    {"-t", "here it is --threads"},
    {"-np", "here it is --sequences; every one of them may have the whole context"},
    {"--parallel", "here it is --sequences; every one of them may have the whole context"},
    {"--max-num-seqs", "here it is --sequences"},
    {"-ctk", "here it is --kv-type, for K and V"},
    {"-ctv", "here it is --kv-type, for K and V"},
    {"--cache-type-k", "here it is --kv-type, for K and V"},
    {"--cache-type-v", "here it is --kv-type, for K and V"},
    {"--kv-cache-dtype", "here it is --kv-type"},
    {"--gpu-memory-utilization", "here it is --memory, a size such as 6GiB"},
    {"--served-model-name", "here it is --alias"},
    {"--api-key", "here it is --api-key-file, so that no key is in the list of processes"},
    {"--chat-template-file", "here it is --chat-template FILE"},
    {"--lora-scaled", "here it is --lora FILE:SCALE"},
    {"--jinja", "it is always on: chat goes through the model's Jinja template"},
    {"--enable-prefix-caching", "it is always on"},
    {"--cache-reuse", "it is always on, for prefixes; nothing else would be exact"},
    {"-fa", "there is one attention, which is exact"},
    {"-ngl", "this server computes on the CPU"},
    {"--n-gpu-layers", "this server computes on the CPU"},
    {"--no-mmap", "weights are always read, never mapped"},
    {"--mlock", "weights are always read, never mapped"},
    {"--allowed-origins", "here it is --cors ORIGIN"},
    {"--uvicorn-log-level", "here it is --log-level"},
});

std::vector<std::string> FlagsOf(const CLI::App& command) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  return flags;
}

std::string UnknownFlag(const std::string& typed, const CLI::App& command) {
  const std::string flag = typed.substr(0, typed.find('='));
  for (const ForeignFlag& foreign : kForeignFlags)
    if (flag == foreign.theirs) return absl::StrCat("there is no ", flag, ": ", std::string(foreign.advice));
  const std::string nearest = Nearest(flag, FlagsOf(command));
  return absl::StrCat("there is no ", flag, nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?"));
}

std::vector<std::string> CommandsOf(const CLI::App& app) {
  std::vector<std::string> commands;
  for (const CLI::App* command : app.get_subcommands(nullptr)) commands.push_back(command->get_name());
  return commands;
}

// Unknown flags come before what they make wrong: a missing model, a value without its flag.
std::string ExplainOne(const CLI::App& command, const CLI::ParseError& error, const std::string& help) {
  for (const std::string& rest : command.remaining())
    if (rest.size() > 1 && rest[0] == '-') return absl::StrCat(UnknownFlag(rest, command), help);
  if (!command.remaining().empty())
    return absl::StrCat("'", command.remaining()[0], "' is one argument too many", help);
  if (error.get_name() == "RequiredError" && command.get_option_no_throw("model") != nullptr)
    return absl::StrCat("which model? `reprise ", command.get_name(), " MODEL.gguf`", help);
  return absl::StrCat(error.what(), help);
}

// A command with commands of its own.
std::string ExplainFamily(const CLI::App& family, const CLI::ParseError& error, const std::string& help) {
  const std::vector<CLI::App*> chosen = family.get_subcommands();
  if (!chosen.empty()) return ExplainOne(*chosen[0], error, help);
  const std::vector<std::string> commands = CommandsOf(family);
  const std::string& name = family.get_name();
  if (family.remaining().empty())
    return absl::StrCat("what about the ", name, "? `reprise ", name, " ", absl::StrJoin(commands, "|"), "`", help);
  const std::string typed = family.remaining()[0];
  if (typed[0] == '-') return absl::StrCat(UnknownFlag(typed, family), help);
  const std::string nearest = Nearest(typed, commands);
  return absl::StrCat("there is no command 'reprise ", name, " ", typed, "'",
                      nearest.empty() ? "" : absl::StrCat("; did you mean `reprise ", name, " ", nearest, "`?"), help);
}

}  // namespace

std::string Nearest(std::string_view text, const std::vector<std::string>& candidates) {
  std::string best;
  size_t fewest = text.size() / 2 + 1;
  for (const std::string& candidate : candidates) {
    const size_t edits = EditDistance(text, candidate);
    if (edits >= fewest) continue;
    fewest = edits;
    best = candidate;
  }
  return best;
}

std::string ExplainUsage(const CLI::App& app, const CLI::ParseError& error, const std::vector<std::string>& arguments) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  const std::string help = absl::StrCat("\n`reprise ", chosen.empty() ? "" : absl::StrCat(chosen[0]->get_name(), " "),
                                        "--help` lists ", chosen.empty() ? "the commands" : "the flags");
  if (chosen.empty()) {
    const std::vector<std::string> commands = CommandsOf(app);
    if (arguments.empty()) return absl::StrCat("say what to do, such as `reprise serve MODEL.gguf`", help);
    if (arguments[0].rfind("-", 0) == 0) return absl::StrCat(UnknownFlag(arguments[0], app), help);
    if (arguments[0].size() > 5 && arguments[0].rfind(".gguf") == arguments[0].size() - 5)
      return absl::StrCat("say what to do with the model: `reprise serve ", arguments[0], "` or `reprise chat ",
                          arguments[0], "`");
    const std::string nearest = Nearest(arguments[0], commands);
    return absl::StrCat("there is no command '", arguments[0], "'",
                        nearest.empty() ? "" : absl::StrCat("; did you mean `reprise ", nearest, "`?"), help);
  }
  // `inspect` takes a model or one of its own commands.
  const bool takes_model = chosen[0]->get_option_no_throw("model") != nullptr && chosen[0]->get_subcommands().empty();
  if (!CommandsOf(*chosen[0]).empty() && !takes_model) return ExplainFamily(*chosen[0], error, help);
  return ExplainOne(*chosen[0], error, help);
}

}  // namespace reprise
