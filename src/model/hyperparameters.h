// From metadata to numbers: what a GGUF file says about its model, with llama.cpp's defaults for what
// it leaves out, checked against what is supported.
//
// Ownership: fills the description. Threads: pure functions. Errors: as ModelDescription::Read.
#pragma once

#include "absl/status/status.h"
#include "model/description.h"
#include "model/gguf.h"

namespace reprise {

// Fills family, name, dimensions, scales, layer_plans (windows and ropes) and ropes; all but
// vocab_size, tensors, geometry and identity.
absl::Status ResolveHyperparameters(const Gguf& gguf, ModelDescription& model);

}  // namespace reprise
