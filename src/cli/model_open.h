// What every command does first: reads the description of a model file, and says what to do next when
// that cannot be.
//
// Ownership: values. Threads: any.
// Errors:    NotFound, PermissionDenied, InvalidArgument (a directory): with the GGUF files nearby.
//            DataLoss: not a GGUF file, or damaged. Unimplemented: a model without support. Those of adapters
//            as ReadAdapters gives them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/description.h"

namespace reprise {

absl::StatusOr<std::unique_ptr<ModelDescription>> OpenModel(const std::string& path, ElementType kv_type,
                                                            const std::vector<AdapterOptions>& adapters);

// Whether the file brings a chat template; false for what cannot be read.
bool HasChatTemplate(const std::string& path);

// "models/gemma-3-270m.gguf" is served as "gemma-3-270m".
std::string ModelStem(const std::string& path);

}  // namespace reprise
