// For tests: the tokenizers of the real models (docs/hacking.md), loaded once.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/ledger.h"
#include "token/tokenizer.h"

namespace reprise {

struct RealModel {
  std::string file;  // path
  std::string family;
  std::shared_ptr<Ledger> ledger = std::make_shared<Ledger>(uint64_t{4} << 30);
  std::shared_ptr<Tokenizer> owned = nullptr;
  const Tokenizer& tokenizer() const { return *owned; }
};

inline std::filesystem::path RealModelPath(const std::string& name) {
  const char* directory = std::getenv("REPRISE_MODELS");
  if (directory != nullptr) return std::filesystem::path(directory) / name;
  const char* home = std::getenv("HOME");
  return std::filesystem::path(home == nullptr ? "." : home) / ".cache/reprise/models" / name;
}

// Loads one of "smollm2", "gemma3", "qwen2" on first use. A model that cannot be loaded ends the test:
// ./test fetches them all.
inline const RealModel& RealModelOf(const std::string& family) {
  static std::map<std::string, RealModel> models;
  const auto [found, is_new] = models.try_emplace(family);
  RealModel& model = found->second;
  if (is_new) {
    model.family = family;
    model.file = RealModelPath(family == "smollm2"  ? "smollm2-135m-instruct-q4_1.gguf"
                               : family == "gemma3" ? "gemma-3-270m-q4_k_m.gguf"
                                                    : "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf");
    auto tokenizer = Tokenizer::Load(model.file, *model.ledger);
    if (!tokenizer.ok()) {
      std::cerr << tokenizer.status() << "; ./run --get-model fetches it\n";
      std::abort();
    }
    model.owned = *std::move(tokenizer);
  }
  return model;
}

inline std::vector<RealModel> RealModels() {
  return {RealModelOf("smollm2"), RealModelOf("gemma3"), RealModelOf("qwen2")};
}

}  // namespace reprise
