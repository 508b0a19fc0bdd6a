// libllama on the same file: what the forward pass is held against.
//
// Ownership: owns model and context. Threads: one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/geometry.h"
#include "base/ids.h"

struct llama_model;
struct llama_context;
struct llama_adapter_lora;

namespace reprise {

class LlamaOracle {
 public:
  struct Options {
    uint32_t context = 512;
    uint32_t batch = 512;  // tokens of one decode call and of one graph
    uint32_t threads = 1;  // its workers spin: beside anything else two are slower than one
    bool flash_attention = true;
    ElementType kv_type = ElementType::kF16;
    bool repack = true;  // ggml's own interleaved weights
  };
  LlamaOracle(const std::string& path, const Options& options);
  ~LlamaOracle();

  uint32_t vocab_size() const;
  std::vector<TokenId> Tokenize(const std::string& text, bool add_special) const;

  // LoRA adapters of files, with their scales, from now on; each file is read once.
  void UseAdapters(std::span<const std::pair<std::string, float>> adapters);

  // Logits of every token from `first_wanted` on, of a sequence that begins anew: [n - first_wanted, vocab].
  std::vector<float> Logits(std::span<const TokenId> tokens, uint32_t first_wanted);

 private:
  const Options options_;
  llama_model* model_ = nullptr;
  llama_context* context_ = nullptr;
  std::map<std::string, llama_adapter_lora*> adapters_;  // by path; the model owns them
};

}  // namespace reprise
