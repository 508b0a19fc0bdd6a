// LoRA adapters with random weights, for a model of any family, as llama.cpp's converter writes them.
//
// Ownership: values. Threads: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/description.h"
#include "tests/gguf_writer.h"

namespace reprise {

struct LoraOptions {
  uint32_t rank = 8;
  float alpha = 16.0f;
  float strength = 0.1f;                 // of B's values: how far replies move
  WeightType a_type = WeightType::kF32;  // B is always F32
  std::vector<std::string> parts = {"attn_q", "attn_v", "attn_output", "ffn_gate", "ffn_down"};  // of every layer
  uint64_t seed = 1;
};

GgufWriter RandomLora(const ModelDescription& model, const LoraOptions& options);
// The same in a file of this name, in the test's directory; its path.
std::string WriteRandomLora(const ModelDescription& model, const LoraOptions& options, const std::string& name);

}  // namespace reprise
