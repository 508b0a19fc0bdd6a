// Where tests find the real models that ./test fetches, and the small ones that every test may use.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

namespace reprise {

inline std::string ModelPath(const std::string& file) {
  const char* folder = std::getenv("REPRISE_MODELS");
  return (folder != nullptr ? std::string(folder) : std::string(std::getenv("HOME")) + "/.cache/reprise/models") + "/" +
         file;
}

inline const std::vector<std::string>& SmallModels() {
  static const std::vector<std::string> models = {"smollm2-135m-instruct-q4_1.gguf", "gemma-3-270m-q4_k_m.gguf",
                                                  "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"};
  return models;
}

// Minutes for every test: only in the long run.
inline const std::string& LargeModel() {
  static const std::string model = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf";
  return model;
}

}  // namespace reprise
