// A blocking caller of an engine, for tests.
#pragma once

#include <future>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace reprise {

// What one request got, once it has ended.
struct Reply {
  std::string text;
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;  // [tokens], if asked for
  GenerationEvent last;
  uint32_t prefill_events = 0;

  const Timings& timings() const { return last.timings; }
};

// Submitted; Wait gives the reply. An error at submission is a reply with that error.
class PendingReply {
 public:
  PendingReply(EngineInterface& engine, GenerationRequest request) : future_(state_->promise.get_future()) {
    const auto submission = engine.Submit(std::move(request), [state = state_](GenerationEvent event) {
      state->reply.text += event.text;
      for (const GeneratedToken& token : event.tokens) {
        state->reply.tokens.push_back(token.token);
        state->reply.logprobs.push_back(token.logprob);
      }
      if (event.prefilled > 0) ++state->reply.prefill_events;
      if (!event.finish) return;
      state->reply.last = std::move(event);
      state->promise.set_value(std::move(state->reply));
    });
    id_ = submission.id;
    if (!submission.error) return;
    state_->reply.last = {.finish = FinishReason::kError, .error = submission.error};
    state_->promise.set_value(std::move(state_->reply));
  }
  SequenceId id() const { return id_; }
  Reply Wait() { return future_.get(); }

 private:
  struct State {
    Reply reply;
    std::promise<Reply> promise;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
  std::future<Reply> future_;
  SequenceId id_;
};

// Greedy, to its full length.
inline GenerationRequest GreedyRequest(std::vector<TokenId> prompt, uint32_t max_tokens) {
  GenerationRequest request{.prompt = std::move(prompt), .max_tokens = max_tokens};
  request.sampling.temperature = 0;
  request.ignore_eos = true;
  request.scope.tenant = "test";
  return request;
}

inline std::vector<TokenId> RandomTokens(uint32_t count, uint32_t vocab_size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<TokenId> tokens;
  for (uint32_t i = 0; i < count; ++i)
    tokens.push_back(TokenId(static_cast<int32_t>(vocab_size / 10 + random() % (vocab_size / 10 * 8))));
  return tokens;
}

}  // namespace reprise
