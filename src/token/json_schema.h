// JSON schemas to GBNF, by llama.cpp's converter, within limits: a schema comes from a client.
//
// Ownership: none. Threads: any.
// Errors:    InvalidArgument naming the place in the schema.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace reprise {

inline constexpr size_t kSchemaBytesMax = 256 << 10;
inline constexpr uint32_t kSchemaDepthMax = 64;

// `schema`: JSON text.
absl::StatusOr<std::string> JsonSchemaToGbnf(std::string_view schema);

}  // namespace reprise
