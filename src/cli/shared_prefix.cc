#include "cli/shared_prefix.h"

#include <algorithm>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/ledger.h"
#include "cache/kv_cache.h"
#include "cli/flag_values.h"

namespace reprise {
namespace {

constexpr size_t kTextBytesMax = 1 << 20;

absl::Status Named(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("--shared-prefix ", path, ": ", std::string(status.message())));
}

}  // namespace

absl::StatusOr<std::vector<TokenId>> SharedPrefixOf(std::string_view system_text, const Tokenizer& tokenizer,
                                                    const ChatTemplate& chat_template) {
  // What a user begins with may merge with the end of the text in front of it: letters, digits, spaces and line ends
  // merge with different things.
  std::optional<std::vector<TokenId>> common;
  for (const char* user : {"a", "1", ".", " a", "  a", "\na", "\n\na", "\ta"}) {
    ChatRequest request;
    request.messages = {{.role = "system", .content = std::string(system_text)}, {.role = "user", .content = user}};
    const absl::StatusOr<ChatPrompt> prompt = chat_template.Prompt(request);
    if (!prompt.ok()) return prompt.status();
    const std::vector<TokenId> tokens = tokenizer.Encode(prompt->text, /*add_special=*/true, /*parse_special=*/true);
    if (!common) common = tokens;
    const size_t most = std::min(common->size(), tokens.size());
    common->resize(std::mismatch(common->begin(), common->begin() + most, tokens.begin()).first - common->begin());
  }
  return *std::move(common);
}

absl::StatusOr<std::vector<std::vector<TokenId>>> ReadSharedPrefixes(const std::vector<std::string>& paths,
                                                                     const std::string& model_path,
                                                                     const std::string& template_text) {
  std::vector<std::vector<TokenId>> prefixes;
  if (paths.empty()) return prefixes;
  if (paths.size() > kSharedPrefixesMax)
    return absl::InvalidArgumentError(
        absl::StrCat("--shared-prefix: at most ", kSharedPrefixesMax, ", got ", paths.size()));
  Ledger ledger(Tokenizer::EstimateBytes(model_path));
  const auto tokenizer = Tokenizer::Load(model_path, ledger);
  if (!tokenizer.ok()) return tokenizer.status();
  const auto chat_template = ChatTemplate::Load(**tokenizer, template_text);
  if (!chat_template.ok()) return Named(paths[0], chat_template.status());
  for (const std::string& path : paths) {
    absl::StatusOr<std::string> text = ReadTextFile("--shared-prefix", path, kTextBytesMax);
    if (!text.ok()) return text.status();
    if (text->ends_with('\n')) text->pop_back();
    absl::StatusOr<std::vector<TokenId>> prefix = SharedPrefixOf(*text, **tokenizer, **chat_template);
    if (!prefix.ok()) return Named(path, prefix.status());
    prefixes.push_back(*std::move(prefix));
  }
  return prefixes;
}

}  // namespace reprise
