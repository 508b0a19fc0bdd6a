#include "cli/workloads.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "cli/http_client.h"

namespace reprise {
namespace {

using Clock = std::chrono::steady_clock;
using Prompt = std::vector<int32_t>;

double MillisecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

Prompt RandomPrompt(std::mt19937_64& random, uint32_t tokens, uint32_t vocab_size) {
  Prompt prompt(tokens);
  for (int32_t& token : prompt) token = static_cast<int32_t>(vocab_size / 10 + random() % (vocab_size / 10 * 8));
  return prompt;
}

struct Timed {
  double total_ms = 0;        // as the client sees it
  double first_token_ms = 0;  // as the server says; ours only
  double decode_ms = 0;
};

absl::StatusOr<Timed> Complete(HttpClient& client, const BenchTarget& target, const Prompt& prompt, uint32_t tokens,
                               bool use_cache) {
  nlohmann::json body = {{"prompt", prompt}, {"max_tokens", tokens}, {"temperature", 0}, {"ignore_eos", true}};
  if (target.peer) {
    body["cache_prompt"] = use_cache;
  } else {
    body["cache"] = {{"read", use_cache}, {"write", use_cache}};
  }
  const Clock::time_point start = Clock::now();
  const absl::StatusOr<nlohmann::json> reply = client.Post("/v1/completions", body);
  if (!reply.ok()) return reply.status();
  Timed timed{.total_ms = MillisecondsSince(start)};
  if (!target.peer && reply->contains("timings")) {
    timed.first_token_ms = (*reply)["timings"].value("first_token_ms", 0.0);
    timed.decode_ms = (*reply)["timings"].value("decode_ms", 0.0);
  }
  return timed;
}

class Runner {
 public:
  Runner(const std::vector<BenchTarget>& targets, const WorkloadOptions& options)
      : targets_(targets), options_(options), random_(options.seed) {}

  absl::Status Connect() {
    for (const BenchTarget& target : targets_) {
      auto client = HttpClient::Connect(target.url);
      if (!client.ok()) return client.status();
      clients_.push_back(*std::move(client));
    }
    return absl::OkStatus();
  }

  // A new prompt of prompt_tokens, one token of reply, nothing cached.
  absl::Status Prefill(std::vector<WorkloadResult>& results) {
    WorkloadResult& result = Add(results, absl::StrCat("prefill ", options_.prompt_tokens), "tok/s");
    return Repeat(
        [&](size_t t, const Prompt& prompt) -> absl::Status {
          const auto timed = Complete(*clients_[t], targets_[t], prompt, 1, false);
          if (!timed.ok()) return timed.status();
          result.values[t].push_back(options_.prompt_tokens / timed->total_ms * 1e3);
          return absl::OkStatus();
        },
        options_.prompt_tokens);
  }

  // reply_tokens tokens after `depth` tokens of context that are cached.
  absl::Status Decode(std::vector<WorkloadResult>& results) {
    WorkloadResult& result = Add(results, absl::StrCat("decode at ", options_.depth), "tok/s");
    // One prompt for all repetitions: both sides keep it, so what is measured is decoding.
    const Prompt prompt = RandomPrompt(random_, options_.depth, options_.vocab_size);
    for (size_t t = 0; t < targets_.size(); ++t) {
      const auto warm = Complete(*clients_[t], targets_[t], prompt, 1, true);
      if (!warm.ok()) return warm.status();
    }
    return Repeat(
        [&](size_t t, const Prompt&) -> absl::Status {
          const auto timed = Complete(*clients_[t], targets_[t], prompt, options_.reply_tokens, true);
          if (!timed.ok()) return timed.status();
          result.values[t].push_back(options_.reply_tokens / timed->total_ms * 1e3);
          return absl::OkStatus();
        },
        1);
  }

  // The same prompt twice: time to the first token cold, warm, and one decode step beside it.
  absl::Status RepeatedPrompt(std::vector<WorkloadResult>& results) {
    results.reserve(results.size() + 3);
    WorkloadResult& cold = Add(results, absl::StrCat("repeat ", options_.prompt_tokens, ": cold, total"), "ms");
    WorkloadResult& warm = Add(results, absl::StrCat("repeat ", options_.prompt_tokens, ": warm, total"), "ms");
    WorkloadResult& steps = Add(results, "repeat: first_token_ms / decode step, ours", "x");
    return Repeat(
        [&](size_t t, const Prompt& prompt) -> absl::Status {
          const auto first = Complete(*clients_[t], targets_[t], prompt, 1, true);
          if (!first.ok()) return first.status();
          const auto second = Complete(*clients_[t], targets_[t], prompt, 1, true);
          if (!second.ok()) return second.status();
          cold.values[t].push_back(first->total_ms);
          warm.values[t].push_back(second->total_ms);
          if (targets_[t].peer) return absl::OkStatus();
          const auto decode = Complete(*clients_[t], targets_[t], prompt, options_.reply_tokens, true);
          if (!decode.ok()) return decode.status();
          steps.values[t].push_back(decode->first_token_ms / (decode->decode_ms / (options_.reply_tokens - 1)));
          return absl::OkStatus();
        },
        options_.prompt_tokens);
  }

  // `clients` requests at once that share a new prefix: until the last one has its reply.
  absl::Status SharedPrefix(std::vector<WorkloadResult>& results) {
    WorkloadResult& result =
        Add(results, absl::StrCat(options_.clients, " clients share ", options_.shared_tokens), "ms");
    return Repeat(
        [&](size_t t, const Prompt& shared) -> absl::Status {
          std::vector<absl::Status> statuses(options_.clients);
          std::vector<std::thread> threads;
          std::vector<Prompt> prompts;
          for (uint32_t c = 0; c < options_.clients; ++c) {
            prompts.push_back(shared);
            const Prompt own = RandomPrompt(random_, 16, options_.vocab_size);
            prompts.back().insert(prompts.back().end(), own.begin(), own.end());
          }
          const Clock::time_point start = Clock::now();
          for (uint32_t c = 0; c < options_.clients; ++c)
            threads.emplace_back([&, c] {
              auto client = HttpClient::Connect(targets_[t].url);
              statuses[c] =
                  client.ok() ? Complete(**client, targets_[t], prompts[c], 16, true).status() : client.status();
            });
          for (std::thread& thread : threads) thread.join();
          result.values[t].push_back(MillisecondsSince(start));
          for (const absl::Status& status : statuses)
            if (!status.ok()) return status;
          return absl::OkStatus();
        },
        options_.shared_tokens);
  }

 private:
  WorkloadResult& Add(std::vector<WorkloadResult>& results, std::string name, std::string unit) {
    results.push_back({std::move(name), std::move(unit), std::vector<std::vector<double>>(targets_.size())});
    return results.back();
  }

  // Targets in turn, so that a change of the machine's speed meets all of them. The first round warms up.
  template <class Body>
  absl::Status Repeat(Body body, uint32_t prompt_tokens) {
    for (uint32_t r = 0; r < options_.repeat; ++r) {
      const Prompt prompt = RandomPrompt(random_, prompt_tokens, options_.vocab_size);
      for (size_t t = 0; t < targets_.size(); ++t) {
        const absl::Status status = body(t, prompt);
        if (!status.ok()) return status;
      }
    }
    return absl::OkStatus();
  }

  const std::vector<BenchTarget>& targets_;
  const WorkloadOptions& options_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<HttpClient>> clients_;
};

}  // namespace

std::vector<std::string> WorkloadNames() { return {"prefill", "decode", "repeat", "shared-prefix"}; }

absl::StatusOr<std::vector<WorkloadResult>> RunWorkload(const std::string& name,
                                                        const std::vector<BenchTarget>& targets,
                                                        const WorkloadOptions& options) {
  Runner runner(targets, options);
  absl::Status status = runner.Connect();
  std::vector<WorkloadResult> results;
  if (status.ok()) {
    status = name == "prefill"  ? runner.Prefill(results)
             : name == "decode" ? runner.Decode(results)
             : name == "repeat" ? runner.RepeatedPrompt(results)
                                : runner.SharedPrefix(results);
  }
  if (!status.ok()) return status;
  return results;
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace reprise
