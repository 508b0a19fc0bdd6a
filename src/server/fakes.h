// For tests: an engine that needs no model, and a text codec whose tokens are bytes.
//
// The engine answers with the prompt's own tokens, again and again, so a test knows the text. It steps
// on a thread of its own, as the real one does, and can be told to stay in a phase.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/engine.h"
#include "server/text_codec.h"

namespace reprise {

// Reads text between ( and ) as reasoning, and [name args] as a call of a tool; a name comes out whole.
class FakeReader : public ReplyReader {
 public:
  FakeReader(uint64_t seed, std::atomic<int>& appends) : seed_(seed), appends_(appends) {}
  ChatDelta Append(std::string_view text) override {
    ++appends_;
    ChatDelta delta;
    for (const char c : text) Put(c, delta);
    return delta;
  }
  ChatDelta Finish() override {
    ChatDelta delta;
    if (in_name_) delta.content = "[" + name_;  // it never was a call
    return delta;
  }
  uint32_t tool_calls() const override { return calls_; }

 private:
  void Put(char c, ChatDelta& delta) {
    if (in_name_) {
      if (c != ' ') {
        name_ += c;
        return;
      }
      in_name_ = false;
      in_arguments_ = true;
      const std::string id = "call_" + std::to_string(seed_) + "_" + std::to_string(calls_);
      delta.tool_calls.push_back({calls_++, id, std::exchange(name_, ""), ""});
    } else if (in_arguments_) {
      if (c == ']') {
        in_arguments_ = false;
      } else if (delta.tool_calls.empty() || delta.tool_calls.back().index != calls_ - 1) {
        delta.tool_calls.push_back({calls_ - 1, "", "", std::string(1, c)});
      } else {
        delta.tool_calls.back().arguments += c;
      }
    } else if (c == '[') {
      in_name_ = true;
    } else if (c == '(' || c == ')') {
      thinking_ = c == '(';
    } else {
      (thinking_ ? delta.reasoning : delta.content) += c;
    }
  }

  const uint64_t seed_;
  std::atomic<int>& appends_;
  uint32_t calls_ = 0;
  bool thinking_ = false, in_name_ = false, in_arguments_ = false;
  std::string name_;
};

class FakeCodec : public TextCodec {
 public:
  std::vector<TokenId> Encode(std::string_view text, bool add_special, bool) const override {
    std::vector<TokenId> tokens;
    if (add_special && bos) tokens.emplace_back(256);
    for (const char c : text) tokens.emplace_back(static_cast<uint8_t>(c));
    return tokens;
  }
  std::string Piece(TokenId token) const override {
    return token.value() < 256 ? std::string(1, static_cast<char>(token.value())) : bos_piece;
  }
  uint32_t vocab_size() const override { return 257; }
  // "role:content\n" for each message; a schema with the word "bad" cannot be followed.
  absl::StatusOr<ChatPrompt> Prompt(const ChatRequest& request) const override {
    if (!has_template) return absl::FailedPreconditionError("no template: use /v1/completions");
    {
      std::lock_guard lock(mutex_);
      last_chat_ = request;
    }
    if (auto bad = CompileSchema(request.json_schema); !bad.ok()) return bad.status();
    for (const ChatTool& tool : request.tools) {
      if (auto bad = CompileSchema(tool.parameters); !bad.ok()) return bad.status();
    }
    if (request.tool_choice == ToolChoice::kRequired && !has_tools) {
      return absl::InvalidArgumentError("tool_choice: the template has no tools");
    }
    ChatPrompt prompt{.stop = template_stop, .written_tokens = template_written};
    for (const ChatMessage& message : request.messages) {
      if (message.content == "refuse me") return absl::InvalidArgumentError("the template refused the messages");
      prompt.text += message.role + ":" + message.content + "\n";
    }
    return prompt;
  }
  absl::StatusOr<std::shared_ptr<const Grammar>> CompileSchema(std::string_view schema) const override {
    if (schema.find("bad") != std::string_view::npos) return absl::InvalidArgumentError("a bad schema");
    return nullptr;
  }
  uint64_t GrammarBytes(const ChatPrompt&) const override { return grammar_bytes; }
  std::unique_ptr<ReplyReader> ReadReply(std::shared_ptr<const ReplyFormat>, uint64_t seed) const override {
    return std::make_unique<FakeReader>(seed, appends);
  }
  ChatRequest last_chat() const {
    std::lock_guard lock(mutex_);
    return last_chat_;
  }

  mutable std::atomic<int> appends{0};  // of all its readers

  bool bos = false;
  std::string bos_piece = "<s>";
  bool has_template = true;
  bool has_tools = true;
  uint64_t grammar_bytes = 0;
  std::vector<std::string> template_stop;
  std::vector<TokenId> template_written;

 private:
  mutable std::mutex mutex_;
  mutable ChatRequest last_chat_;
};

class FakeEngine : public EngineInterface {
 public:
  enum class Phase { kQueued, kPrefill, kDecoding, kNever };

  FakeEngine() : thread_([this] { Loop(); }) {}
  ~FakeEngine() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    thread_.join();
  }

  // Requests stay in this phase until they are cancelled. kNever: they go on to their end.
  std::atomic<Phase> stay{Phase::kNever};
  std::atomic<int> step_us{200};
  std::atomic<uint32_t> context{4096};
  std::atomic<uint32_t> repeat_text{1};  // each ASCII character, so many times
  std::atomic<uint32_t> refuse_from{0};  // Submit refuses when so many are live; 0: never
  // Instead of token number `fail_at`, this error. 0: Submit refuses.
  std::atomic<int> fail_at{-1};
  std::atomic<bool> stopping_for_good{false};  // Explain and Purge refuse

  Submission Submit(GenerationRequest request, GenerationSink sink) override {
    std::lock_guard lock(mutex_);
    if (fail_at == 0) {
      RequestError error{429, "queue_full", "", "the queue is full"};
      error.limit = 1;
      error.retry_after_s = 7;
      return {SequenceId(0), error};
    }
    if (refuse_from > 0 && live_.size() >= refuse_from) {
      return {SequenceId(0), RequestError{429, "queue_full", "", "the queue is full"}};
    }
    const uint64_t needs = request.prompt.size() + std::max<uint64_t>(request.max_tokens, 1);
    if (needs > context_max()) {
      return {SequenceId(0), RequestError{400, "context_too_long", request.prompt_param, "too long", context_max(),
                                          static_cast<double>(needs)}};
    }
    const SequenceId id(++last_id_);
    last_request_ = request;
    requests_.push_back(request);
    live_.emplace(id, Live{std::move(request), std::move(sink)});
    return {id, std::nullopt};
  }
  void Cancel(SequenceId id) override {
    std::lock_guard lock(mutex_);
    if (live_.contains(id)) cancelled_.insert(id);
  }
  Stats stats() const override { return {}; }
  const Identity& identity() const override { return identity_; }
  // Answers with report(), at once.
  bool Explain(ExplainRequest request, std::function<void(PrefixReport)> done) override {
    PrefixReport answer;
    {
      std::lock_guard lock(mutex_);
      last_explain_ = std::move(request);
      if (stopping_for_good) return false;
      answer = report_;
    }
    done(answer);
    return true;
  }
  // What Explain answers with, and every request's last event.
  void set_report(const PrefixReport& report) {
    std::lock_guard lock(mutex_);
    report_ = report;
  }
  ExplainRequest last_explain() const {
    std::lock_guard lock(mutex_);
    return last_explain_;
  }
  std::vector<std::string> purged_tenants() const {
    std::lock_guard lock(mutex_);
    return purged_tenants_;
  }
  bool Purge(std::string tenant, std::function<void(Purged)> done) override {
    {
      std::lock_guard lock(mutex_);
      if (stopping_for_good) return false;
      purged_tenants_.push_back(std::move(tenant));
    }
    Purged purged{.memory = {.blocks = 3, .pinned = 1}};
    if (tier_stats()) purged.tier = TierErased{.blocks = 8, .bytes = 800};
    done(std::move(purged));
    return true;
  }
  std::optional<TierStats> tier_stats() const override {
    std::lock_guard lock(mutex_);
    return tier_;
  }
  // A tier; `from_disk` tokens of every prompt come from it.
  void set_tier(const TierStats& tier, uint32_t from_disk) {
    std::lock_guard lock(mutex_);
    tier_ = tier;
    from_disk_ = from_disk;
  }
  KvCache::Stats cache_stats() const override {
    KvCache::Stats stats{.sequences = 2, .nodes = 3, .tails = 1, .evicted_blocks = 5};
    stats.groups = {{.slot_bytes = 100, .slots_total = 10, .slots_free = 4, .slots_active = 5, .slots_reusable = 1},
                    {.kind = GroupKind::kWindow, .window = 512, .slot_bytes = 10, .slots_total = 8, .slots_free = 8}};
    return stats;
  }
  uint32_t context_max() const override { return context; }
  void Drain(uint32_t deadline_ms) override {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(deadline_ms);
    while (live() > 0 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    {
      std::lock_guard lock(mutex_);
      for (const auto& [id, request] : live_) cancelled_.insert(id);
    }
    while (live() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  size_t live() const {
    std::lock_guard lock(mutex_);
    return live_.size();
  }
  int cancelled() const { return cancelled_count_; }
  GenerationRequest last_request() const {
    std::lock_guard lock(mutex_);
    return last_request_;
  }
  // All of them, in the order of Submit.
  std::vector<GenerationRequest> requests() const {
    std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  struct Live {
    GenerationRequest request;
    GenerationSink sink;
    uint32_t prefilled = 0;
    uint32_t generated = 0;
    std::string held;  // bytes of a character that is not complete
  };

  void Loop() {
    while (true) {
      std::vector<std::pair<GenerationSink, GenerationEvent>> out;
      {
        std::lock_guard lock(mutex_);
        if (stopping_) return;
        for (auto it = live_.begin(); it != live_.end();) {
          GenerationEvent event;
          const bool ended = Step(it->first, it->second, event);
          out.emplace_back(it->second.sink, std::move(event));
          it = ended ? live_.erase(it) : std::next(it);
        }
        cancelled_.clear();
      }
      for (auto& [sink, event] : out) sink(std::move(event));
      out.clear();
      std::this_thread::sleep_for(std::chrono::microseconds(step_us));
    }
  }

  bool Step(SequenceId id, Live& live, GenerationEvent& event) {
    const auto prompt_n = static_cast<uint32_t>(live.request.prompt.size());
    event.timings = {.queue_ms = 0.5,
                     .prompt_n = prompt_n,
                     .computed_n = 1,
                     .predicted_n = live.generated,
                     .cached_pool = prompt_n - 1 - from_disk_,
                     .cached_disk = from_disk_};
    event.prefix = report_;
    if (cancelled_.contains(id)) {
      ++cancelled_count_;
      event.finish = FinishReason::kCancelled;
      return true;
    }
    if (stay == Phase::kQueued) return false;
    if (live.prefilled < prompt_n && (stay == Phase::kPrefill || live.prefilled == 0)) {
      live.prefilled = stay == Phase::kPrefill ? 1 : prompt_n;
      event.prefilled = live.prefilled;
      return false;
    }
    if (fail_at > 0 && live.generated + 1 == static_cast<uint32_t>(fail_at.load())) {
      event.finish = FinishReason::kError;
      event.error = RequestError{500, "internal", "", "NaN in the logits"};
      return true;
    }
    const TokenId token = live.request.prompt[live.generated++ % prompt_n];
    event.tokens.push_back({token, -0.25f, {{token, -0.25f}, {TokenId(65), -2.5f}}});
    live.held += FakeCodec().Piece(token);
    if (Complete(live.held)) {
      if (live.held.size() == 1) {
        event.text.assign(repeat_text, live.held[0]);
      } else {
        event.text = live.held;
      }
      live.held.clear();
    }
    event.timings.predicted_n = live.generated;
    const uint32_t limit = live.request.max_tokens == 0 ? prompt_n : live.request.max_tokens;
    if (stay == Phase::kDecoding || live.generated < limit) return false;
    event.finish = live.request.max_tokens == 0 ? FinishReason::kStop : FinishReason::kLength;
    return true;
  }

  static bool Complete(const std::string& character) {
    const auto lead = static_cast<uint8_t>(character[0]);
    const size_t size = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    return character.size() >= size;
  }

  mutable std::mutex mutex_;
  std::map<SequenceId, Live> live_;
  std::set<SequenceId> cancelled_;
  GenerationRequest last_request_;
  std::vector<GenerationRequest> requests_;
  const Identity identity_{.computation = {.model = Sha256::Of("model"),
                                           .tokenizer = Sha256::Of("tokenizer"),
                                           .position = "rope_neox/base=1e6",
                                           .numerics = "1"},
                           .geometry = Sha256::Of("geometry")};
  ExplainRequest last_explain_;
  PrefixReport report_{.match = {.reason = MissReason::kNeverSeen}};
  std::vector<std::string> purged_tenants_;
  std::optional<TierStats> tier_;
  uint32_t from_disk_ = 0;
  std::atomic<int> cancelled_count_{0};
  uint64_t last_id_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace reprise
