#include "token/grammar_machine.h"

#include <algorithm>
#include <utility>

namespace reprise {
namespace {

using Kind = GrammarElement::Kind;

constexpr uint32_t kUnknown = UINT32_MAX;
constexpr size_t kStacksMax = 1 << 14;
constexpr uint32_t kVisitsMax = 1 << 16;  // nodes met while one set is built
// No grammar may hold up the others who are served: nodes met between two tokens, a quarter of a second, of which each
// token of the reply gives some back.
constexpr uint64_t kWorkMax = 4'000'000;
constexpr uint64_t kWorkPerToken = 500'000;
constexpr size_t kTopsPerWork = 32;  // to look at a top costs so much less than to meet a node
// What a walk over the vocabulary may leave in the tables until Trim, together some 80 MB at worst.
constexpr size_t kWalkNodesMax = 1 << 19;
constexpr size_t kWalkSetsMax = 1 << 16;
constexpr size_t kWalkTopsMax = 1 << 22;
// What Trim leaves: about half a MiB each of steps, nodes and tops.
constexpr size_t kSetsMax = 1024;
constexpr size_t kNodesMax = 1 << 14;
constexpr size_t kTopsMax = 1 << 16;

// The code points that a character which has begun may become; low above high: none.
std::pair<uint32_t, uint32_t> Completions(const GrammarMachine::Position& at) {
  const uint32_t shift = 6u * at.missing;
  uint32_t low = at.bits << shift, high = low | ((1u << shift) - 1);
  low = std::max(low, at.size == 2 ? 0x80u : at.size == 3 ? 0x800u : 0x10000u);
  high = std::min(high, 0x10FFFFu);
  if (low >= 0xD800 && high <= 0xDFFF) return {1, 0};
  return {low, high};
}

}  // namespace

size_t GrammarMachine::Hash::operator()(const Node& node) const {
  uint64_t hash = (uint64_t{node.parent} << 32 | node.element) * 0x9E3779B97F4A7C15ull;
  hash = (hash ^ (hash >> 29) ^ node.count) * 0xBF58476D1CE4E5B9ull;
  return hash ^ (hash >> 32);
}

size_t GrammarMachine::Hash::operator()(const std::vector<uint32_t>& set) const {
  uint64_t hash = set.size();
  for (uint32_t value : set) hash = (hash ^ value) * 0x9E3779B97F4A7C15ull ^ (hash >> 29);
  return hash;
}

GrammarMachine::GrammarMachine(std::shared_ptr<const GrammarRules> rules) : rules_(std::move(rules)) {
  nodes_.emplace_back();
  seen_.push_back(0);
  sets_.emplace_back();
  ++build_;
  for (const uint32_t alternative : rules_->rules[rules_->root]) Expand(Push(0, alternative, 0));
  start_ = TakeBuilding();
}

uint32_t GrammarMachine::Push(uint32_t parent, uint32_t element, uint32_t count) {
  if (rules_->elements[element].kind == Kind::kEnd) return parent;
  const Node node{parent, element, count};
  const auto [at, is_new] = node_ids_.try_emplace(node, static_cast<uint32_t>(nodes_.size()));
  if (is_new) {
    nodes_.push_back(node);
    seen_.push_back(0);
  }
  return at->second;
}

uint32_t GrammarMachine::After(const Node& node) { return Push(node.parent, node.element + 1, 0); }

// Adds what can be read next once `from` is on top.
void GrammarMachine::Expand(uint32_t from) {
  todo_.push_back(from);
  while (!todo_.empty()) {
    const uint32_t id = todo_.back();
    todo_.pop_back();
    if (seen_[id] == build_) continue;
    seen_[id] = build_;
    if (id == 0) {
      building_ends_ = true;
      continue;
    }
    ++work_;
    if (++visited_ > kVisitsMax || building_.size() > kStacksMax || work_ > kWorkMax) {
      building_failed_ = true;
      todo_.clear();
      return;
    }
    const Node node = nodes_[id];
    const GrammarElement& element = rules_->elements[node.element];
    if (element.kind != Kind::kRule && element.kind != Kind::kRepeat) {
      building_.push_back(id);
      continue;
    }
    uint32_t then;
    if (element.kind == Kind::kRule) {
      then = After(node);
    } else {
      if (node.count >= element.min) todo_.push_back(After(node));
      // Without a limit, the count matters only until the least number is reached.
      uint32_t count = node.count + 1;
      if (element.max == kUnlimited) count = std::min(count, element.min);
      then = count == element.max ? After(node) : Push(node.parent, node.element, count);
    }
    const std::vector<uint32_t>& alternatives = rules_->rules[element.index];
    work_ += alternatives.size();
    for (const uint32_t alternative : alternatives) todo_.push_back(Push(then, alternative, 0));
  }
}

uint32_t GrammarMachine::TakeBuilding() {
  std::vector<uint32_t> tops = std::exchange(building_, {});
  const bool ends = std::exchange(building_ends_, false);
  visited_ = 0;
  if (nodes_.size() > kWalkNodesMax || sets_.size() > kWalkSetsMax || tops_ > kWalkTopsMax) work_ = kWorkMax + 1;
  if (std::exchange(building_failed_, false) || work_ > kWorkMax) return 0;
  std::sort(tops.begin(), tops.end());
  return Intern(std::move(tops), ends);
}

uint32_t GrammarMachine::Intern(std::vector<uint32_t> tops, bool ends) {
  if (tops.empty() && !ends) return 0;
  tops.push_back(ends);
  const auto [at, is_new] = set_ids_.try_emplace(tops, static_cast<uint32_t>(sets_.size()));
  if (!is_new) return at->second;
  tops.pop_back();
  Set& set = sets_.emplace_back();
  set.ends = ends;
  for (const uint32_t top : tops) {
    const GrammarElement& element = rules_->elements[nodes_[top].element];
    if (element.kind == Kind::kChars) set.uniform_above &= rules_->classes[element.index].uniform_above;
  }
  tops_ += tops.size();
  set.tops = std::move(tops);
  return at->second;
}

uint32_t GrammarMachine::Step(uint32_t set, uint32_t code_point) {
  if (code_point >= 128 && !sets_[set].uniform_above) return ComputeStep(set, code_point);
  const size_t slot = std::min<size_t>(code_point, kSteps - 1);
  if (sets_[set].steps == nullptr) {
    sets_[set].steps = std::make_unique<std::array<uint32_t, kSteps>>();
    sets_[set].steps->fill(kUnknown);
  }
  uint32_t& known = (*sets_[set].steps)[slot];
  if (known != kUnknown) return known;
  const uint32_t to = ComputeStep(set, code_point);
  (*sets_[set].steps)[slot] = to;  // the array stays where it is when sets are added
  return to;
}

uint32_t GrammarMachine::ComputeStep(uint32_t set, uint32_t code_point) {
  ++build_;
  work_ += sets_[set].tops.size();
  for (const uint32_t top : sets_[set].tops) {
    const Node node = nodes_[top];
    const GrammarElement& element = rules_->elements[node.element];
    if (element.kind == Kind::kChars && rules_->classes[element.index].Has(code_point)) Expand(After(node));
  }
  return TakeBuilding();
}

uint32_t GrammarMachine::StepToken(uint32_t set, TokenId token) {
  const uint32_t id = static_cast<uint32_t>(token.value());
  ++build_;
  work_ += sets_[set].tops.size() / kTopsPerWork;
  for (const uint32_t top : sets_[set].tops) {
    const Node node = nodes_[top];
    const GrammarElement& element = rules_->elements[node.element];
    if ((element.kind == Kind::kToken && element.index == id) ||
        (element.kind == Kind::kNotToken && element.index != id))
      Expand(After(node));
  }
  return TakeBuilding();
}

GrammarMachine::Position GrammarMachine::Byte(Position at, uint8_t byte) {
  if (work_ > kWorkMax) return {};
  if (at.missing == 0) {
    if (byte == 0) return {};  // as in libllama, not even "." is a NUL
    if (byte < 0x80) return {.set = Step(at.set, byte)};
    const uint8_t size = byte < 0xC2 ? 0 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : byte < 0xF5 ? 4 : 0;
    if (size == 0) return {};
    return {.set = at.set,
            .bits = byte & ((1u << (7 - size)) - 1),
            .missing = static_cast<uint8_t>(size - 1),
            .size = size};
  }
  if (byte >> 6 != 2) return {};
  at.bits = at.bits << 6 | (byte & 0x3F);
  --at.missing;
  const auto [low, high] = Completions(at);
  if (low > high) return {};
  if (at.missing > 0) return at;
  return {.set = Step(at.set, at.bits)};
}

bool GrammarMachine::MayComplete(const Position& at) const {
  if (at.missing == 0) return true;
  const auto [low, high] = Completions(at);
  for (const uint32_t top : sets_[at.set].tops) {
    const GrammarElement& element = rules_->elements[nodes_[top].element];
    if (element.kind == Kind::kChars && low <= high && rules_->classes[element.index].HasAny(low, high)) return true;
  }
  return false;
}

GrammarMachine::Position GrammarMachine::Token(Position at, TokenId token, std::string_view bytes) {
  Position by_bytes = bytes.empty() ? Position{} : at;
  for (size_t i = 0; i < bytes.size() && !dead(by_bytes); ++i)
    by_bytes = Byte(by_bytes, static_cast<uint8_t>(bytes[i]));
  if (!dead(by_bytes) && !MayComplete(by_bytes)) by_bytes = {};
  if (!rules_->has_tokens || at.missing != 0) return by_bytes;
  const Position by_token{.set = StepToken(at.set, token)};
  if (dead(by_token)) return by_bytes;
  if (dead(by_bytes) || by_bytes.missing != 0) return by_token;
  std::vector<uint32_t> both = sets_[by_token.set].tops;
  both.insert(both.end(), sets_[by_bytes.set].tops.begin(), sets_[by_bytes.set].tops.end());
  std::sort(both.begin(), both.end());
  both.erase(std::unique(both.begin(), both.end()), both.end());
  return {.set = Intern(std::move(both), sets_[by_token.set].ends || sets_[by_bytes.set].ends)};
}

GrammarMachine::Position GrammarMachine::Trim(Position keep) {
  if (work_ <= kWorkMax) work_ -= std::min(work_, kWorkPerToken);
  if (sets_.size() <= kSetsMax && nodes_.size() <= kNodesMax && tops_ <= kTopsMax) return keep;
  std::vector<Node> old_nodes = std::exchange(nodes_, {Node{}});
  const Set kept = std::move(sets_[keep.set]);
  node_ids_.clear();
  set_ids_.clear();
  sets_.clear();
  sets_.emplace_back();
  tops_ = 0;
  seen_.assign(1, 0);
  build_ = 0;
  // Parents come before their children in the old order, and are copied before them.
  std::unordered_map<uint32_t, uint32_t> renamed = {{0, 0}};
  std::vector<uint32_t> tops, path;
  for (const uint32_t top : kept.tops) {
    for (uint32_t id = top; !renamed.contains(id); id = old_nodes[id].parent) path.push_back(id);
    for (; !path.empty(); path.pop_back()) {
      const Node& node = old_nodes[path.back()];
      renamed[path.back()] = Push(renamed.at(node.parent), node.element, node.count);
    }
    tops.push_back(renamed.at(top));
  }
  std::sort(tops.begin(), tops.end());
  keep.set = Intern(std::move(tops), kept.ends);
  start_ = 0;
  return keep;
}

}  // namespace reprise
