#include "token/grammar.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <regex>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "token/gbnf.h"
#include "token/grammar_machine.h"
#include "token/json_schema.h"
#include "token/piece_table.h"

namespace reprise {
namespace {

using Position = GrammarMachine::Position;
using Kind = GrammarTrigger::Kind;

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();
// How far back a pattern looks: std::regex recurses over what it reads.
constexpr size_t kPatternBytesMax = 1024;

}  // namespace

struct Grammar::Impl {
  struct Pattern {
    std::regex regex;
    bool whole = false;  // of the reply so far
  };

  const PieceTable* pieces = nullptr;
  std::shared_ptr<const GrammarRules> rules;
  Options options;
  std::vector<Pattern> patterns;
  size_t look_back = 0;            // bytes of the reply that a trigger may begin in
  std::vector<TokenId> as_tokens;  // of options.begun

  absl::Status AddTriggers();
  // Where in `text` the grammar starts, if a trigger ends after `old` bytes of it.
  std::optional<size_t> Triggered(const std::string& text, size_t old, bool from_begin) const;
  bool IsTrigger(TokenId token) const;
  bool IsWritten(TokenId token) const;
  // What of a token the rules read as text.
  std::string_view Text(TokenId token) const {
    return pieces->is_control(token) && !IsWritten(token) ? std::string_view() : pieces->piece(token);
  }
};

absl::Status Grammar::Impl::AddTriggers() {
  for (const GrammarTrigger& trigger : options.triggers) {
    if (trigger.kind == Kind::kToken) continue;
    if (trigger.value.empty()) return absl::InvalidArgumentError("a trigger is empty");
    if (trigger.kind == Kind::kWord) {
      look_back = std::max(look_back, trigger.value.size() - 1);
      continue;
    }
    look_back = std::max(look_back, kPatternBytesMax);
    try {
      patterns.push_back({.regex = std::regex(trigger.value),
                          .whole = trigger.kind == Kind::kPatternFull ||
                                   (trigger.value.front() == '^' && trigger.value.back() == '$')});
    } catch (const std::regex_error& error) {
      return absl::InvalidArgumentError(absl::StrCat("trigger ", trigger.value, ": ", error.what()));
    }
  }
  return absl::OkStatus();
}

std::optional<size_t> Grammar::Impl::Triggered(const std::string& text, size_t old, bool from_begin) const {
  std::optional<size_t> first;
  const auto found = [&](size_t at) { first = std::min(first.value_or(at), at); };
  for (const GrammarTrigger& trigger : options.triggers) {
    if (trigger.kind != Kind::kWord) continue;
    const size_t from = old - std::min(old, trigger.value.size() - 1);
    if (const size_t at = text.find(trigger.value, from); at != std::string::npos) found(at);
  }
  for (const Pattern& pattern : patterns) {
    std::smatch match;
    const bool matches =
        pattern.whole ? from_begin && text.size() <= kPatternBytesMax && std::regex_match(text, match, pattern.regex)
                      : std::regex_search(text, match, pattern.regex);
    if (!matches) continue;
    // From the first group that holds something.
    size_t group = 1;
    while (group < match.size() && match.length(group) == 0) ++group;
    found(static_cast<size_t>(match.position(group < match.size() ? group : 0)));
  }
  return first;
}

bool Grammar::Impl::IsTrigger(TokenId token) const {
  return std::any_of(options.triggers.begin(), options.triggers.end(), [token](const GrammarTrigger& trigger) {
    return trigger.kind == Kind::kToken && trigger.token == token;
  });
}

bool Grammar::Impl::IsWritten(TokenId token) const {
  const auto& written = options.written_tokens;
  return std::find(written.begin(), written.end(), token) != written.end() || IsTrigger(token);
}

struct GrammarState::Impl {
  Impl(std::shared_ptr<const Grammar> g, const Grammar::Impl& i)
      : grammar(std::move(g)), compiled(i), machine(i.rules), at(machine.start()), waiting(i.options.lazy) {}

  // What the reply with `token` would be.
  struct Next {
    Position at;
    bool waiting = false;
    bool dead() const { return !waiting && GrammarMachine::dead(at); }
  };
  Next After(TokenId token);
  void Begin();  // reads options.begun
  void MaskText(std::span<float> logits);

  const std::shared_ptr<const Grammar> grammar;
  const Grammar::Impl& compiled;
  GrammarMachine machine;
  Position at;
  bool waiting;               // for a trigger
  std::string text;           // while waiting: the end of the reply
  bool text_is_whole = true;  // `text` is all of it
  std::string with_token;     // scratch
  TokenId asked{-1};          // the latest After, since Accept follows Allows
  Next answer;
  std::vector<Position> path;  // of MaskText: after each byte of a token
};

GrammarState::Impl::Next GrammarState::Impl::After(TokenId token) {
  if (token == asked) return answer;
  asked = token;
  if (!waiting) return answer = {.at = machine.Token(at, token, compiled.Text(token))};
  if (compiled.IsTrigger(token)) return answer = {.at = machine.Token(at, token, compiled.Text(token))};
  with_token.assign(text).append(compiled.pieces->piece(token));
  const auto start = compiled.Triggered(with_token, text.size(), text_is_whole);
  if (!start) return answer = {.at = at, .waiting = true};
  return answer = {.at = machine.Token(at, TokenId(-1), std::string_view(with_token).substr(*start))};
}

void GrammarState::Impl::Begin() {
  const std::string& begun = compiled.options.begun;
  if (begun.empty()) return;
  if (!compiled.rules->has_tokens) {
    at = machine.Token(at, TokenId(-1), begun);
    return;
  }
  for (const TokenId token : compiled.as_tokens) at = machine.Token(at, token, compiled.pieces->piece(token));
}

// Tokens with text in the order of their bytes: what two of them share is walked once, and after a byte that may not
// come all that share it are passed over.
void GrammarState::Impl::MaskText(std::span<float> logits) {
  constexpr size_t kNowhere = SIZE_MAX;
  path.assign(1, at);
  size_t failed = kNowhere;  // the byte of the latest token that may not come
  for (const PieceTable::Entry& entry : compiled.pieces->sorted()) {
    float& logit = logits[entry.token.value()];
    if (failed != kNowhere && entry.shared > failed) {
      logit = kNegativeInfinity;
      continue;
    }
    failed = kNowhere;
    if (path.size() > entry.shared + 1u) path.resize(entry.shared + 1u);
    if (logit == kNegativeInfinity) continue;
    const std::string_view piece = compiled.pieces->piece(entry.token);
    while (path.size() <= piece.size()) {
      const size_t byte = path.size() - 1;
      const Position next = machine.Byte(path.back(), static_cast<uint8_t>(piece[byte]));
      if (GrammarMachine::dead(next)) {
        failed = byte;
        break;
      }
      path.push_back(next);
    }
    if (failed != kNowhere || !machine.MayComplete(path.back())) logit = kNegativeInfinity;
  }
}

Grammar::Grammar() : impl_(std::make_unique<Impl>()) {}
Grammar::~Grammar() = default;

uint64_t Grammar::bytes() const {
  const GrammarRules& rules = *impl_->rules;
  uint64_t bytes = sizeof(Impl) + sizeof(GrammarRules) + rules.elements.capacity() * sizeof(GrammarElement) +
                   rules.rules.capacity() * sizeof(rules.rules[0]) + rules.classes.capacity() * sizeof(CharClass);
  for (const auto& rule : rules.rules) bytes += rule.capacity() * sizeof(rule[0]);
  for (const CharClass& characters : rules.classes) {
    bytes += characters.ranges.capacity() * sizeof(characters.ranges[0]);
  }
  return bytes;
}

absl::StatusOr<std::shared_ptr<const Grammar>> Grammar::FromGbnf(const Tokenizer& tokenizer, std::string_view gbnf,
                                                                 Options options) {
  absl::StatusOr<GrammarRules> rules = ParseGbnf(tokenizer, gbnf);
  if (!rules.ok()) return rules.status();
  std::shared_ptr<Grammar> grammar(new Grammar);
  Impl& impl = *grammar->impl_;
  impl.pieces = &tokenizer.pieces();
  impl.rules = std::make_shared<const GrammarRules>(*std::move(rules));
  impl.options = std::move(options);
  if (absl::Status status = impl.AddTriggers(); !status.ok()) return status;
  if (impl.options.lazy && impl.options.triggers.empty())
    return absl::InvalidArgumentError("a lazy grammar needs a trigger");
  if (impl.rules->has_tokens && !impl.options.begun.empty())
    impl.as_tokens = tokenizer.Encode(impl.options.begun, /*add_special=*/false, /*parse_special=*/true);
  if (GrammarMachine::dead(GrammarState(grammar).impl_->at))
    return absl::InvalidArgumentError("the grammar allows nothing, or is too ambiguous to be followed");
  return grammar;
}

absl::StatusOr<std::shared_ptr<const Grammar>> Grammar::FromJsonSchema(const Tokenizer& tokenizer,
                                                                       std::string_view schema) {
  absl::StatusOr<std::string> gbnf = JsonSchemaToGbnf(schema);
  if (!gbnf.ok()) return gbnf.status();
  return FromGbnf(tokenizer, *gbnf, {});
}

GrammarState::GrammarState(std::shared_ptr<const Grammar> grammar) {
  const Grammar::Impl& compiled = *grammar->impl_;
  impl_ = std::make_unique<Impl>(std::move(grammar), compiled);
  if (!impl_->waiting) impl_->Begin();
}
GrammarState::GrammarState(GrammarState&&) noexcept = default;
GrammarState::~GrammarState() = default;

bool GrammarState::Allows(TokenId token) {
  if (static_cast<uint32_t>(token.value()) >= impl_->compiled.pieces->vocab_size()) return false;
  if (impl_->compiled.pieces->is_end(token)) return MayEnd();
  return !impl_->After(token).dead();
}

void GrammarState::Mask(std::span<float> logits) {
  const PieceTable& pieces = *impl_->compiled.pieces;
  const bool by_text = !impl_->waiting && !impl_->compiled.rules->has_tokens;
  CHECK_GE(logits.size(), pieces.vocab_size());
  if (by_text) impl_->MaskText(logits);
  for (uint32_t id = 0; id < logits.size(); ++id) {
    const TokenId token(static_cast<int32_t>(id));
    if (logits[id] == kNegativeInfinity) continue;
    if (by_text && id < pieces.vocab_size() && !pieces.is_control(token) && !pieces.piece(token).empty()) continue;
    if (!Allows(token)) logits[id] = kNegativeInfinity;
  }
}

void GrammarState::Accept(TokenId token) {
  Impl& impl = *impl_;
  if (impl.compiled.pieces->is_end(token)) return;
  const Impl::Next next = impl.After(token);
  CHECK(!next.dead());
  impl.asked = TokenId(-1);
  if (next.waiting) {
    impl.text += impl.compiled.pieces->piece(token);
    if (impl.text.size() > impl.compiled.look_back) {
      impl.text.erase(0, impl.text.size() - impl.compiled.look_back);
      impl.text_is_whole = false;
    }
    return;
  }
  impl.waiting = false;
  impl.at = impl.machine.Trim(next.at);
}

bool GrammarState::MayEnd() const { return impl_->waiting || impl_->machine.MayEnd(impl_->at); }
bool GrammarState::MustEnd() const { return !impl_->waiting && impl_->machine.MustEnd(impl_->at); }

}  // namespace reprise
