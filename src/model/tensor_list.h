// Which tensor of the file is which part of the model: every expected one is there with the right
// shape and a type that can be used, and there is no other.
//
// Ownership: fills the description. Threads: pure functions. Errors: as ModelDescription::Read.
#pragma once

#include "absl/status/status.h"
#include "model/description.h"
#include "model/gguf.h"

namespace reprise {

// Fills tensors, weight_types, parameters and vocab_size. REQUIRES: hyperparameters are resolved.
absl::Status ResolveTensors(const Gguf& gguf, ModelDescription& model);

}  // namespace reprise
