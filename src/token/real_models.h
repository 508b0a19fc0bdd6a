// For tests: the tokenizers of the real models (docs/hacking.md), loaded once.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
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

// A model that cannot be loaded fails the test: ./test fetches them all.
inline const std::vector<RealModel>& RealModels() {
  static const std::vector<RealModel> models = [] {
    std::vector<RealModel> all = {{RealModelPath("smollm2-135m-instruct-q4_1.gguf"), "smollm2"},
                                  {RealModelPath("gemma-3-270m-q4_k_m.gguf"), "gemma3"},
                                  {RealModelPath("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"), "qwen2"}};
    for (RealModel& model : all) {
      auto tokenizer = Tokenizer::Load(model.file, *model.ledger);
      if (!tokenizer.ok()) {
        ADD_FAILURE() << tokenizer.status() << "; ./run --get-model fetches it";
        std::abort();
      }
      model.owned = *std::move(tokenizer);
    }
    return all;
  }();
  return models;
}

inline const RealModel& RealModelOf(const std::string& family) {
  for (const RealModel& model : RealModels()) {
    if (model.family == family) return model;
  }
  std::abort();
}

}  // namespace reprise
