#include "token/json_schema.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "json-schema-to-grammar.h"

namespace reprise {

absl::StatusOr<std::string> JsonSchemaToGbnf(std::string_view schema) {
  try {
    return json_schema_to_grammar(common_json::parse(std::string(schema)));
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(error.what());
  }
}

}  // namespace reprise
