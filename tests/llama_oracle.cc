#include "tests/llama_oracle.h"

#include <llama.h>

#include <algorithm>

#include "base/check.h"

namespace reprise {
namespace {

ggml_type GgmlType(ElementType type) {
  return type == ElementType::kF32 ? GGML_TYPE_F32 : type == ElementType::kF16 ? GGML_TYPE_F16 : GGML_TYPE_BF16;
}

}  // namespace

LlamaOracle::LlamaOracle(const std::string& path, const Options& options) : options_(options) {
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
      },
      nullptr);
  llama_model_params model_params = llama_model_default_params();
  model_params.use_extra_bufts = options.repack;
  model_ = llama_model_load_from_file(path.c_str(), model_params);
  CHECK(model_ != nullptr);

  llama_context_params params = llama_context_default_params();
  params.n_ctx = options.context;
  params.n_batch = options.batch;
  params.n_ubatch = options.batch;
  params.n_threads = static_cast<int32_t>(options.threads);
  params.n_threads_batch = static_cast<int32_t>(options.threads);
  params.flash_attn_type = options.flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.type_k = GgmlType(options.kv_type);
  params.type_v = GgmlType(options.kv_type);
  context_ = llama_init_from_model(model_, params);
  CHECK(context_ != nullptr);
}

LlamaOracle::~LlamaOracle() {
  llama_free(context_);
  llama_model_free(model_);
}

uint32_t LlamaOracle::vocab_size() const {
  return static_cast<uint32_t>(llama_vocab_n_tokens(llama_model_get_vocab(model_)));
}

std::vector<TokenId> LlamaOracle::Tokenize(const std::string& text, bool add_special) const {
  std::vector<TokenId> out(text.size() + 8);
  const int32_t count =
      llama_tokenize(llama_model_get_vocab(model_), text.data(), static_cast<int32_t>(text.size()),
                     reinterpret_cast<llama_token*>(out.data()), static_cast<int32_t>(out.size()), add_special, false);
  CHECK_LE(0, count);
  out.resize(static_cast<size_t>(count));
  return out;
}

void LlamaOracle::UseAdapters(std::span<const std::pair<std::string, float>> adapters) {
  std::vector<llama_adapter_lora*> loaded;
  std::vector<float> scales;
  for (const auto& [path, scale] : adapters) {
    llama_adapter_lora*& adapter = adapters_[path];
    if (adapter == nullptr) adapter = llama_adapter_lora_init(model_, path.c_str());
    CHECK(adapter != nullptr);
    loaded.push_back(adapter);
    scales.push_back(scale);
  }
  CHECK_EQ(llama_set_adapters_lora(context_, loaded.data(), loaded.size(), scales.data()), 0);
}

std::vector<float> LlamaOracle::Logits(std::span<const TokenId> tokens, uint32_t first_wanted) {
  llama_memory_clear(llama_get_memory(context_), true);
  const uint32_t vocab = vocab_size();
  std::vector<float> out;
  llama_batch batch = llama_batch_init(static_cast<int32_t>(options_.batch), 0, 1);
  for (size_t done = 0; done < tokens.size();) {
    const size_t count = std::min<size_t>(options_.batch, tokens.size() - done);
    batch.n_tokens = static_cast<int32_t>(count);
    for (size_t i = 0; i < count; ++i) {
      batch.token[i] = tokens[done + i].value();
      batch.pos[i] = static_cast<llama_pos>(done + i);
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = 0;
      batch.logits[i] = done + i >= first_wanted;
    }
    CHECK_EQ(llama_decode(context_, batch), 0);
    for (size_t i = 0; i < count; ++i) {
      if (done + i < first_wanted) continue;
      const float* row = llama_get_logits_ith(context_, static_cast<int32_t>(i));
      out.insert(out.end(), row, row + vocab);
    }
    done += count;
  }
  llama_batch_free(batch);
  return out;
}

}  // namespace reprise
