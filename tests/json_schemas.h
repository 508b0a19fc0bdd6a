// Random JSON schemas and a validator for the part of JSON Schema that they use, for tests.
#pragma once

#include <cmath>
#include <random>
#include <regex>
#include <string>

#include "nlohmann/json.hpp"

namespace reprise {

using SchemaJson = nlohmann::ordered_json;

// Objects, arrays, enums, constants, numbers with limits, strings with lengths and patterns, alternatives, references;
// a function of the seed.
class SchemaGenerator {
 public:
  explicit SchemaGenerator(uint64_t seed) : random_(seed) {}

  SchemaJson Make() {
    SchemaJson schema = Object(0);
    if (uses_shared_) schema["$defs"] = {{"shared", Object(2)}};
    return schema;
  }

 private:
  uint32_t Below(uint32_t n) { return static_cast<uint32_t>(random_() % n); }
  bool Chance(uint32_t percent) { return Below(100) < percent; }

  SchemaJson Any(uint32_t depth) {
    const uint32_t kinds = depth < 3 ? 11 : 7;
    switch (Below(kinds)) {
      case 0:
        return {{"type", "boolean"}};
      case 1:
        return Number("integer");
      case 2:
        return Number("number");
      case 3:
        return String();
      case 4:
        return {{"enum", {"red", "green", 7, nullptr, true, "ünï \"q\""}}};
      case 5:
        return {{"const", Chance(50) ? SchemaJson("fixed") : SchemaJson(Below(100))}};
      case 6:
        return {{"type", {"integer", "null"}}, {"minimum", 0}, {"maximum", 20}};
      case 7:
      case 8:
        return Object(depth + 1);
      case 9:
        return Array(depth + 1);
      default:
        if (Chance(40)) {
          uses_shared_ = true;
          return {{"$ref", "#/$defs/shared"}};
        }
        return {{"anyOf", {Any(depth + 1), Any(depth + 1)}}};
    }
  }

  SchemaJson Object(uint32_t depth) {
    static const char* kNames[] = {"name", "value", "id", "a b", "größe", "list", "x", "the \"quoted\""};
    SchemaJson schema = {{"type", "object"}, {"properties", SchemaJson::object()}};
    SchemaJson required = SchemaJson::array();
    const uint32_t count = 1 + Below(4);
    for (uint32_t i = 0; i < count; ++i) {
      const std::string name = kNames[Below(8)];
      if (schema["properties"].contains(name)) continue;
      schema["properties"][name] = Any(depth + 1);
      if (Chance(60)) required.push_back(name);
    }
    if (!required.empty()) schema["required"] = required;
    const uint32_t others = Below(4);
    if (others < 2) schema["additionalProperties"] = false;
    if (others == 2) schema["additionalProperties"] = Chance(50) ? SchemaJson(true) : SchemaJson({{"type", "integer"}});
    return schema;
  }

  SchemaJson Array(uint32_t depth) {
    SchemaJson schema = {{"type", "array"}, {"items", Any(depth + 1)}};
    const uint32_t least = Below(3);
    if (Chance(50)) schema["minItems"] = least;
    if (Chance(70)) schema["maxItems"] = least + Below(4);
    return schema;
  }

  SchemaJson String() {
    static const char* kPatterns[] = {"^[a-z]{2,6}$", "^\\d{3}-\\d{4}$", "^(yes|no)$", "^[A-Z][a-z]*( [A-Z][a-z]*)?$"};
    SchemaJson schema = {{"type", "string"}};
    if (Chance(30)) {
      schema["pattern"] = kPatterns[Below(4)];
      return schema;
    }
    const uint32_t least = Below(5);
    if (Chance(50)) schema["minLength"] = least;
    if (Chance(80)) schema["maxLength"] = least + Below(20);
    return schema;
  }

  SchemaJson Number(const char* type) {
    SchemaJson schema = {{"type", type}};
    const int low = static_cast<int>(Below(2000)) - 1000;
    const double step = std::string(type) == "number" && Chance(50) ? 0.25 : 0;
    if (Chance(60)) schema[Chance(50) ? "minimum" : "exclusiveMinimum"] = low + step;
    if (Chance(60)) schema[Chance(50) ? "maximum" : "exclusiveMaximum"] = low + 2 + static_cast<int>(Below(500)) + step;
    return schema;
  }

  std::mt19937_64 random_;
  bool uses_shared_ = false;
};

inline size_t CharactersOf(const std::string& text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

inline bool IsOfType(const std::string& type, const SchemaJson& value) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "number") return value.is_number();
  return type == "integer" && value.is_number() && std::floor(value.get<double>()) == value.get<double>();
}

// Whether `value` is valid; keywords as the specification defines them, whatever the grammar makes of them.
inline bool IsValid(const SchemaJson& schema, const SchemaJson& value, const SchemaJson& root) {
  if (schema.contains("$ref")) return IsValid(root["$defs"]["shared"], value, root);
  if (schema.contains("anyOf")) {
    for (const SchemaJson& inner : schema["anyOf"])
      if (IsValid(inner, value, root)) return true;
    return false;
  }
  if (schema.contains("const") && value != schema["const"]) return false;
  if (schema.contains("enum") && std::find(schema["enum"].begin(), schema["enum"].end(), value) == schema["enum"].end())
    return false;
  if (schema.contains("type")) {
    const SchemaJson types = schema["type"].is_array() ? schema["type"] : SchemaJson::array({schema["type"]});
    bool matches = false;
    for (const SchemaJson& type : types) matches = matches || IsOfType(type.get<std::string>(), value);
    if (!matches) return false;
  }
  const auto limit = [&](const char* key) { return schema[key].get<double>(); };
  if (value.is_number()) {
    const double number = value.get<double>();
    if (schema.contains("minimum") && number < limit("minimum")) return false;
    if (schema.contains("maximum") && number > limit("maximum")) return false;
    if (schema.contains("exclusiveMinimum") && number <= limit("exclusiveMinimum")) return false;
    if (schema.contains("exclusiveMaximum") && number >= limit("exclusiveMaximum")) return false;
  }
  if (value.is_string()) {
    const std::string text = value.get<std::string>();
    const double length = static_cast<double>(CharactersOf(text));
    if (schema.contains("minLength") && length < limit("minLength")) return false;
    if (schema.contains("maxLength") && length > limit("maxLength")) return false;
    if (schema.contains("pattern") && !std::regex_search(text, std::regex(schema["pattern"].get<std::string>())))
      return false;
  }
  if (value.is_array()) {
    const double size = static_cast<double>(value.size());
    if (schema.contains("minItems") && size < limit("minItems")) return false;
    if (schema.contains("maxItems") && size > limit("maxItems")) return false;
    if (schema.contains("items"))
      for (const SchemaJson& item : value)
        if (!IsValid(schema["items"], item, root)) return false;
  }
  if (value.is_object()) {
    const SchemaJson properties = schema.value("properties", SchemaJson::object());
    for (const SchemaJson& name : schema.value("required", SchemaJson::array()))
      if (!value.contains(name.get<std::string>())) return false;
    for (const auto& [name, inner] : value.items()) {
      if (properties.contains(name)) {
        if (!IsValid(properties[name], inner, root)) return false;
      } else if (schema.contains("additionalProperties")) {
        const SchemaJson& others = schema["additionalProperties"];
        if (others == false || (others.is_object() && !IsValid(others, inner, root))) return false;
      }
    }
  }
  return true;
}

}  // namespace reprise
