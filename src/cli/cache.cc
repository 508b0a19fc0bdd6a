// reprise cache: what a running server or a cache directory holds, and what of a request would be reused.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/text.h"
#include "cli/cache_disk.h"
#include "cli/cache_words.h"
#include "cli/commands.h"
#include "cli/flag_values.h"
#include "cli/http_client.h"

namespace reprise {
namespace {

constexpr size_t kBodyBytesMax = 8 << 20;  // a server takes no more

constexpr char kUrl[] = "http://127.0.0.1:8080";

struct CacheFlags {
  std::string url;  // empty: stat and purge are of a directory, explain and a purge of one's own of the server at kUrl
  std::string directory;
  bool json = false;
  std::string file;
  std::string scope;
  std::string max;
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
  auto client = HttpClient::Connect(ServerUrl(flags.url.empty() ? kUrl : flags.url), key == nullptr ? "" : key);
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

absl::StatusOr<CacheDisk> DiskOf(const CacheFlags& flags) {
  CacheDisk disk{RealFileSystem(), flags.directory.empty() ? CacheDirectory() : flags.directory, flags.json};
  if (disk.directory.empty())
    return absl::InvalidArgumentError("neither XDG_CACHE_HOME nor HOME says where the cache is; --cache-dir DIR does");
  while (disk.directory.size() > 1 && disk.directory.back() == '/') disk.directory.pop_back();
  return disk;
}

// Prints what `work` says, also when it fails.
template <class Work>
absl::Status OnDisk(const CacheFlags& flags, Work work) {
  const absl::StatusOr<CacheDisk> disk = DiskOf(flags);
  if (!disk.ok()) return disk.status();
  std::string out;
  const absl::Status status = work(*disk, out);
  std::fputs(WithoutControls(out).c_str(), stdout);
  std::fflush(stdout);
  return status;
}

absl::Status List(const CacheFlags& flags) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto now_s = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(now).count());
  return OnDisk(flags, [now_s](const CacheDisk& disk, std::string& out) { return ListCache(disk, now_s, out); });
}

absl::Status Verify(const CacheFlags& flags) {
  return OnDisk(flags, [](const CacheDisk& disk, std::string& out) {
    const bool terminal = isatty(STDERR_FILENO) != 0;
    int shown = -1;
    const auto progress = [&](double fraction) {
      const int percent = static_cast<int>(fraction * 100);
      if (percent == shown || !terminal) return;
      shown = percent;
      std::fprintf(stderr, "\rreading and checking: %d %% ", percent);
    };
    const absl::Status status = VerifyCache(disk, progress, out);
    if (shown >= 0) std::fprintf(stderr, "\n");
    return status;
  });
}

absl::Status Gc(const CacheFlags& flags) {
  uint64_t bytes_max = UINT64_MAX;
  if (!flags.max.empty()) {
    const absl::StatusOr<uint64_t> bytes = ParseBytes(flags.max);
    if (!bytes.ok()) return absl::InvalidArgumentError(absl::StrCat("--max: ", std::string(bytes.status().message())));
    bytes_max = *bytes;
  }
  return OnDisk(flags,
                [bytes_max](const CacheDisk& disk, std::string& out) { return CollectCache(disk, bytes_max, out); });
}

absl::Status Stat(const CacheFlags& flags) {
  if (flags.url.empty()) return OnDisk(flags, StatCache);
  return Print(flags, Ask(flags, "GET", "/v1/cache/stats", ""), CacheStatsInWords);
}

absl::Status Purge(const CacheFlags& flags) {
  if (!flags.scope.empty())
    return OnDisk(flags,
                  [&flags](const CacheDisk& disk, std::string& out) { return EraseCache(disk, flags.scope, out); });
  if (!flags.directory.empty())
    return absl::InvalidArgumentError(
        "--scope NAME says of whom (`reprise cache list` shows the names); without --cache-dir a server is asked");
  return Print(flags, Ask(flags, "POST", "/v1/cache/purge", "{}"), PurgedInWords);
}

CLI::App* AddOne(CLI::App& cache, const std::string& name, const std::string& what,
                 const std::shared_ptr<CacheFlags>& flags, int& status, absl::Status (*run)(const CacheFlags&)) {
  CLI::App* command = cache.add_subcommand(name, what);
  command->add_flag("--json", flags->json, "print JSON");
  command->callback([flags, run, &status] {
    const absl::Status done = run(*flags);
    if (!done.ok()) status = Report(done);
  });
  return command;
}

CLI::Option* AddUrl(CLI::App& command, const std::shared_ptr<CacheFlags>& flags, const std::string& otherwise) {
  return command.add_option(
      "--url", flags->url, absl::StrCat("the server, with its API key from OPENAI_API_KEY (default: ", otherwise, ")"));
}

CLI::Option* AddDirectory(CLI::App& command, const std::shared_ptr<CacheFlags>& flags) {
  return command.add_option("--cache-dir", flags->directory,
                            "the directory (default: $XDG_CACHE_HOME/reprise/kv or ~/.cache/reprise/kv)");
}

}  // namespace

void AddCacheCommand(CLI::App& app, int& status) {
  auto flags = std::make_shared<CacheFlags>();
  CLI::App* cache = app.add_subcommand(
      "cache", "what the cache holds, on disk or of a running server: stat, list, verify, gc, purge, explain");
  cache->require_subcommand(1);
  CLI::App* stat =
      AddOne(*cache, "stat", "what a cache directory holds; with --url, what a server has saved", flags, status, Stat);
  AddUrl(*stat, flags, "none: the directory")->excludes(AddDirectory(*stat, flags));
  AddDirectory(*AddOne(*cache, "list", "the namespaces in a cache directory", flags, status, List), flags);
  AddDirectory(*AddOne(*cache, "verify", "read and check every byte of a cache directory; exit status 3 on damage",
                       flags, status, Verify),
               flags);
  CLI::App* gc =
      AddOne(*cache, "gc", "give back what is dead in a cache directory that no server uses", flags, status, Gc);
  AddDirectory(*gc, flags);
  gc->add_option("--max", flags->max, "and the oldest of what is above this size, for each model, as in 5GiB");
  CLI::App* explain =
      AddOne(*cache, "explain", "what of a request a server would reuse, and why not more; runs nothing", flags, status,
             Explain);
  AddUrl(*explain, flags, kUrl);
  explain->add_option("FILE", flags->file, "the body of a completion, as JSON; -: stdin")->required();
  CLI::App* purge = AddOne(*cache, "purge",
                           "have a server forget what was computed for this API key; with --scope, a directory that no "
                           "server uses",
                           flags, status, Purge);
  CLI::Option* url = AddUrl(*purge, flags, kUrl);
  AddDirectory(*purge, flags)->excludes(url);
  purge->add_option("--scope", flags->scope, "a tenant's name, or 8 or more digits of it as `reprise cache list` shows")
      ->excludes(url);
}

}  // namespace reprise
