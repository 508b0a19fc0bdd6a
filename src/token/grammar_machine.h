// Walks GrammarRules byte by byte. A position is a set of stacks of what is still expected, interned, so
// that a step by a character that was taken before from there is one look into a table.
//
// Ownership: shares the rules. Threads: one per object.
// Errors:    none; a grammar so ambiguous that a position would need more than 16,384 stacks, or the step
//            from one token to the next a quarter of a second (counted in nodes, so the same everywhere),
//            allows nothing from there on, also in the middle of a walk over the vocabulary.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "token/gbnf.h"

namespace reprise {

class GrammarMachine {
 public:
  struct Position {
    uint32_t set = 0;  // 0: nothing is allowed
    // A character that has begun: its bits so far, bytes missing, bytes in all.
    uint32_t bits = 0;
    uint8_t missing = 0;
    uint8_t size = 0;
    bool operator==(const Position&) const = default;
  };

  explicit GrammarMachine(std::shared_ptr<const GrammarRules> rules);

  Position start() const { return {.set = start_}; }
  static bool dead(const Position& at) { return at.set == 0; }
  // The text may end here; nothing but its end may come.
  bool MayEnd(const Position& at) const { return at.missing == 0 && sets_[at.set].ends; }
  bool MustEnd(const Position& at) const { return MayEnd(at) && sets_[at.set].tops.empty(); }

  Position Byte(Position at, uint8_t byte);
  // The text goes on with a whole token: by its bytes or as the token itself. Dead if it may not.
  Position Token(Position at, TokenId token, std::string_view bytes);
  // Whether a character that has begun may become one that is expected.
  bool MayComplete(const Position& at) const;

  // Forgets all positions but this one, under its new name, once the tables have grown large. To be called between
  // tokens.
  Position Trim(Position keep);

 private:
  // What is expected once `parent` is: elements from `element` on. Node 0 is the bottom.
  struct Node {
    uint32_t parent = 0;
    uint32_t element = 0;
    uint32_t count = 0;  // of a kRepeat: repetitions begun
    bool operator==(const Node&) const = default;
  };
  struct Hash {
    size_t operator()(const Node& node) const;
    size_t operator()(const std::vector<uint32_t>& set) const;
  };
  static constexpr size_t kSteps = 129;  // by ASCII character, and by any other where all of those are alike
  struct Set {
    std::vector<uint32_t> tops;  // nodes at kChars, kToken or kNotToken, in order
    bool ends = false;
    bool uniform_above = true;
    std::unique_ptr<std::array<uint32_t, kSteps>> steps;  // kUnknown, or a set
  };

  uint32_t Push(uint32_t parent, uint32_t element, uint32_t count);
  // The node of what follows `node`'s element.
  uint32_t After(const Node& node);
  void Expand(uint32_t node);  // adds to building_
  uint32_t TakeBuilding();     // the set that was built
  uint32_t Step(uint32_t set, uint32_t code_point);
  uint32_t ComputeStep(uint32_t set, uint32_t code_point);
  uint32_t StepToken(uint32_t set, TokenId token);
  uint32_t Intern(std::vector<uint32_t> tops, bool ends);

  const std::shared_ptr<const GrammarRules> rules_;
  std::vector<Node> nodes_;
  std::unordered_map<Node, uint32_t, Hash> node_ids_;
  std::vector<Set> sets_;
  std::unordered_map<std::vector<uint32_t>, uint32_t, Hash> set_ids_;  // tops and, last, ends
  uint32_t start_ = 0;

  // While a set is built.
  std::vector<uint32_t> building_;
  bool building_ends_ = false;
  bool building_failed_ = false;
  std::vector<uint32_t> seen_;  // by node: the build that met it
  uint32_t build_ = 0;
  uint32_t visited_ = 0;
  uint64_t work_ = 0;  // Trim gives some back; beyond its limit for good
  size_t tops_ = 0;    // of all sets
  std::vector<uint32_t> todo_;
};

}  // namespace reprise
