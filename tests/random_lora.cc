#include "tests/random_lora.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "tests/tiny_model.h"

namespace reprise {

GgufWriter RandomLora(const ModelDescription& model, const LoraOptions& options) {
  GgufWriter out;
  out.Text("general.type", "adapter");
  out.Text("general.architecture", model.family_name);
  out.Text("adapter.type", "lora");
  out.F32("adapter.lora.alpha", options.alpha);
  uint64_t seed = options.seed * 100'000;
  for (const TensorSource& tensor : model.tensors) {
    const auto wanted = [&](const std::string& part) {
      return tensor.name == absl::StrCat("blk.", tensor.layer, ".", part, ".weight");
    };
    if (std::none_of(options.parts.begin(), options.parts.end(), wanted)) continue;
    const float size = 1.0f / std::sqrt(static_cast<float>(tensor.cols));
    out.AddTensor(tensor.name + ".lora_a", static_cast<uint32_t>(options.a_type), {tensor.cols, options.rank},
                  RandomRows(options.a_type, options.rank, tensor.cols, size, ++seed));
    out.AddTensor(tensor.name + ".lora_b", static_cast<uint32_t>(WeightType::kF32), {options.rank, tensor.rows},
                  RandomRows(WeightType::kF32, tensor.rows, options.rank, options.strength, ++seed));
  }
  out.Layout();
  return out;
}

std::string WriteRandomLora(const ModelDescription& model, const LoraOptions& options, const std::string& name) {
  const std::string path = TestPath(name);
  WriteFile(path, RandomLora(model, options).Bytes());
  return path;
}

}  // namespace reprise
