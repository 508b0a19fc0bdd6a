// reprise cache: what a running server has in its cache, and what of a request it would reuse.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "cli/cache_words.h"
#include "cli/commands.h"
#include "cli/flag_values.h"
#include "cli/http_client.h"

namespace reprise {
namespace {

constexpr size_t kBodyBytesMax = 8 << 20;  // a server takes no more

struct CacheFlags {
  std::string url = "http://127.0.0.1:8080";
  bool json = false;
  std::string file;
};

absl::StatusOr<std::string> ReadStdin() {
  std::string text;
  char part[1 << 16];
  for (size_t read = 1; read > 0 && text.size() <= kBodyBytesMax; text.append(part, read)) {
    read = std::fread(part, 1, sizeof(part), stdin);
  }
  if (text.size() > kBodyBytesMax) return absl::InvalidArgumentError("stdin has more than 8 MiB");
  return text;
}

// Sends the body as it is: the order of its keys is the prompt's, where tools are written into it.
absl::StatusOr<std::string> Ask(const CacheFlags& flags, const std::string& method, const std::string& path,
                                const std::string& body) {
  const char* key = std::getenv("OPENAI_API_KEY");
  auto client = HttpClient::Connect(ServerUrl(flags.url), key == nullptr ? "" : key);
  if (!client.ok()) return client.status();
  absl::StatusOr<std::string> answer = (*client)->Send(method, path, body);
  const std::string why(answer.status().message());
  if (absl::IsUnauthenticated(answer.status())) {
    return absl::UnauthenticatedError(absl::StrCat(why, "; put the key into the environment variable OPENAI_API_KEY"));
  }
  if (absl::IsUnavailable(answer.status())) {
    return absl::UnavailableError(
        absl::StrCat(why, "; is a server running there? `reprise serve MODEL.gguf` starts one, --url names another"));
  }
  return answer;
}

absl::Status Print(const CacheFlags& flags, const absl::StatusOr<std::string>& answer,
                   std::string (*in_words)(std::string_view)) {
  if (!answer.ok()) return answer.status();
  if (flags.json) {
    std::printf("%s\n", WithoutControls(*answer).c_str());
    return absl::OkStatus();
  }
  const std::string words = in_words(*answer);
  if (words.empty()) return absl::InternalError("the answer is not a JSON object; is that a reprise server?");
  std::fputs(WithoutControls(words).c_str(), stdout);
  return absl::OkStatus();
}

absl::Status Explain(const CacheFlags& flags) {
  const absl::StatusOr<std::string> body =
      flags.file == "-" ? ReadStdin() : ReadTextFile("FILE", flags.file, kBodyBytesMax);
  if (!body.ok()) return body.status();
  if (!nlohmann::json::accept(*body)) {
    return absl::InvalidArgumentError(
        absl::StrCat(flags.file, " is not JSON; it should be the body of a request, such as {\"messages\": [...]}"));
  }
  return Print(flags, Ask(flags, "POST", "/v1/cache/explain", *body), ExplainInWords);
}

absl::Status Stat(const CacheFlags& flags) {
  return Print(flags, Ask(flags, "GET", "/v1/cache/stats", ""), CacheStatsInWords);
}

absl::Status Purge(const CacheFlags& flags) {
  return Print(flags, Ask(flags, "POST", "/v1/cache/purge", "{}"), PurgedInWords);
}

CLI::App* AddOne(CLI::App& cache, const std::string& name, const std::string& what,
                 const std::shared_ptr<CacheFlags>& flags, int& status, absl::Status (*run)(const CacheFlags&)) {
  CLI::App* command = cache.add_subcommand(name, what);
  command->add_option("--url", flags->url, "the server; its API key comes from OPENAI_API_KEY")->capture_default_str();
  command->add_flag("--json", flags->json, "print what the server says");
  command->callback([flags, run, &status] {
    const absl::Status done = run(*flags);
    if (!done.ok()) status = Report(done);
  });
  return command;
}

}  // namespace

void AddCacheCommand(CLI::App& app, int& status) {
  auto flags = std::make_shared<CacheFlags>();
  CLI::App* cache = app.add_subcommand("cache", "ask a server about its cache: stat, explain, purge");
  cache->require_subcommand(1);
  AddOne(*cache, "stat", "what the cache holds, and how much it saved", flags, status, Stat);
  AddOne(*cache, "explain", "what of a request would be reused, and why not more; runs nothing", flags, status, Explain)
      ->add_option("FILE", flags->file, "the body of a completion, as JSON; -: stdin")
      ->required();
  AddOne(*cache, "purge", "forget what was computed for this API key; without keys, everything", flags, status, Purge);
}

}  // namespace reprise
