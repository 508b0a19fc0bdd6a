// JSON schemas to GBNF within limits: a schema comes from a client. llama.cpp's converter does the
// structure; what it would pass over in silence (ranges of numbers, patterns) is turned into rules of our
// own first, and what cannot be is refused, so that a reply that follows the grammar is valid.
//
// Ownership: values. Threads: any.
// Errors:    InvalidArgument naming the place in the schema ("#/properties/age: ...").
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace reprise {

inline constexpr size_t kSchemaBytesMax = 256 << 10;
inline constexpr uint32_t kSchemaDepthMax = 64;

// What the converter's time and stack grow with, over all schemas of a request.
struct SchemaCost {
  uint64_t references = 0;  // it follows a chain of them by recursion
  uint64_t optional = 0;    // squares of the numbers of optional properties: a rule for each to begin with
  uint64_t names = 0;       // bytes of names on the longest path: a rule's name, matched by std::regex, which recurses
  bool repeats = false;     // a "type" that names one twice: each is an alternative with all that is below it
};

// Refuses a schema that is no JSON, or with which size, depth, references or optional properties, those of `cost`
// included, would cost the converter much stack or time. `place` is what messages call it.
absl::Status CheckSchemaSize(std::string_view schema, std::string_view place, SchemaCost& cost);

// Refuses JSON text, or what may be, that is nested too deeply for those who read it by recursion.
absl::Status CheckJsonDepth(std::string_view json, uint32_t depth_max, std::string_view place);

// A schema that llama.cpp's converter understands wholly. Where it would not, stands a constant, in whose place
// `Complete` puts a rule.
struct LoweredSchema {
  std::string json;
  std::vector<std::pair<std::string, std::string>> rules;  // name, which is the constant too, and body

  // The converter's grammar for `json`, made to mean the whole schema.
  std::string Complete(std::string gbnf) const;
};
absl::StatusOr<LoweredSchema> LowerJsonSchema(std::string_view schema);

// `schema`: JSON text.
absl::StatusOr<std::string> JsonSchemaToGbnf(std::string_view schema);

// The converter's rules for any string and any number, less what JSON parsers refuse: halves of surrogate pairs,
// exponents beyond a double.
std::string WithStrictPrimitives(std::string gbnf);

}  // namespace reprise
