// Tiny models with random weights, of every family and weight type, with just enough of a tokenizer
// that libllama loads them too.
//
// Ownership: values. Threads: any.
#pragma once

#include <cstdint>
#include <string>

#include "model/description.h"
#include "tests/gguf_writer.h"

namespace reprise {

struct TinyOptions {
  Family family = Family::kLlama;
  WeightType type = WeightType::kQ8_0;            // of all matrices
  WeightType embedding_type = WeightType::kQ8_0;  // of the embedding, and of the head if tied
  uint32_t layers = 3;
  uint32_t width = 256;
  uint32_t feed_forward = 512;
  uint32_t query_heads = 4;
  uint32_t kv_heads = 2;
  uint32_t head_dim = 64;
  uint32_t vocab = 320;
  uint32_t context = 4096;
  uint32_t window = 0;
  uint32_t window_period = 0;  // 0: the family's default
  bool tied = true;
  bool rope_factors = false;
  std::string rope_scaling;  // "", "linear", "yarn"
  uint64_t seed = 1;
};

GgufWriter TinyModel(const TinyOptions& options);

// Rows of random numbers of about this size, in the type's own format.
std::string RandomRows(WeightType type, uint64_t rows, uint64_t cols, float size, uint64_t seed);

// A directory for this test's files, removed at exit.
std::string TestPath(const std::string& name);

}  // namespace reprise
