#include "token/grammar.h"

#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common.h"
#include "json-schema-to-grammar.h"
#include "llama.h"
#include "token/library_log.h"

namespace reprise {
namespace {

struct FreeSampler {
  void operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
};
using SamplerPtr = std::unique_ptr<llama_sampler, FreeSampler>;

}  // namespace

struct Grammar::Impl {
  SamplerPtr start;
};

struct GrammarState::Impl {
  std::shared_ptr<const Grammar> grammar;
  SamplerPtr at;
};

Grammar::Grammar() : impl_(std::make_unique<Impl>()) {}
Grammar::~Grammar() = default;

absl::StatusOr<std::shared_ptr<const Grammar>> Grammar::FromGbnf(const Tokenizer& tokenizer, std::string gbnf,
                                                                 bool lazy, std::vector<GrammarTrigger> triggers,
                                                                 std::string_view begun) {
  RouteLibraryLog();
  std::vector<std::string> patterns;
  std::vector<llama_token> tokens;
  for (const GrammarTrigger& trigger : triggers) {
    if (trigger.kind == GrammarTrigger::Kind::kToken) {
      tokens.push_back(trigger.token.value());
    } else {
      patterns.push_back(trigger.kind == GrammarTrigger::Kind::kWord ? regex_escape(trigger.value) : trigger.value);
    }
  }
  std::vector<const char*> pattern_texts;
  for (const std::string& pattern : patterns) pattern_texts.push_back(pattern.c_str());
  LibraryErrors errors;
  std::shared_ptr<Grammar> grammar(new Grammar);
  try {
    grammar->impl_->start.reset(
        lazy ? llama_sampler_init_grammar_lazy_patterns(tokenizer.vocab(), gbnf.c_str(), "root", pattern_texts.data(),
                                                        pattern_texts.size(), tokens.data(), tokens.size())
             : llama_sampler_init_grammar(tokenizer.vocab(), gbnf.c_str(), "root"));
    if (grammar->impl_->start == nullptr)
      return absl::InvalidArgumentError(absl::StrCat("the grammar cannot be read: ", errors.first()));
    if (!lazy && !begun.empty())
      for (const TokenId token : tokenizer.Encode(begun, false, true))
        llama_sampler_accept(grammar->impl_->start.get(), token.value());
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("the grammar cannot be read: ", error.what()));
  }
  return grammar;
}

absl::StatusOr<std::shared_ptr<const Grammar>> Grammar::FromJsonSchema(const Tokenizer& tokenizer,
                                                                       std::string_view schema) {
  std::string gbnf;
  try {
    gbnf = json_schema_to_grammar(common_json::parse(std::string(schema)));
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(error.what());
  }
  return FromGbnf(tokenizer, std::move(gbnf), /*lazy=*/false, {});
}

GrammarState::GrammarState(std::shared_ptr<const Grammar> grammar) : impl_(std::make_unique<Impl>()) {
  impl_->at.reset(llama_sampler_clone(grammar->impl_->start.get()));
  impl_->grammar = std::move(grammar);
}
GrammarState::GrammarState(GrammarState&&) noexcept = default;
GrammarState::~GrammarState() = default;

bool GrammarState::Allows(TokenId token) {
  llama_token_data candidate{token.value(), 0, 0};
  llama_token_data_array candidates{&candidate, 1, -1, false};
  llama_sampler_apply(impl_->at.get(), &candidates);
  return candidate.logit == 0;
}

void GrammarState::Mask(std::span<float> logits) {
  std::vector<llama_token_data> candidates;
  candidates.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) candidates.push_back({static_cast<llama_token>(i), logits[i], 0});
  llama_token_data_array array{candidates.data(), candidates.size(), -1, false};
  llama_sampler_apply(impl_->at.get(), &array);
  for (const llama_token_data& candidate : candidates) logits[candidate.id] = candidate.logit;
}

void GrammarState::Accept(TokenId token) { llama_sampler_accept(impl_->at.get(), token.value()); }

}  // namespace reprise
