#include "token/json_schema.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "json-schema-to-grammar.h"
#include "nlohmann/json.hpp"
#include "token/number_range.h"
#include "token/regex_gbnf.h"

namespace reprise {
namespace {

using Json = nlohmann::ordered_json;  // a reply has its fields in the schema's order

constexpr uint64_t kCountMax = INT32_MAX;
constexpr uint32_t kRulesMax = 4096;
constexpr std::string_view kRootName = "reprise-root";   // the definition that {"$ref": "#"} means
constexpr std::string_view kRuleName = "reprise-rule-";  // and a number

// What the converter passes over and rules of ours do not cover: without it a reply need not be valid.
constexpr const char* kUnsupported[] = {"multipleOf",
                                        "uniqueItems",
                                        "contains",
                                        "minContains",
                                        "maxContains",
                                        "patternProperties",
                                        "propertyNames",
                                        "minProperties",
                                        "maxProperties",
                                        "dependentRequired",
                                        "dependentSchemas",
                                        "dependencies",
                                        "not",
                                        "if",
                                        "then",
                                        "else",
                                        "unevaluatedItems",
                                        "unevaluatedProperties",
                                        "additionalItems",
                                        "$dynamicRef",
                                        "$recursiveRef"};
// What says nothing about the value.
constexpr const char* kAnnotations[] = {
    "title",    "description", "default",     "examples",      "$schema",  "$id",     "$comment", "deprecated", "$defs",
    "readOnly", "writeOnly",   "definitions", "discriminator", "nullable", "example", "strict",   "$anchor"};

bool IsAnnotation(const std::string& key) {
  return key.starts_with("x-") ||
         std::any_of(std::begin(kAnnotations), std::end(kAnnotations), [&](const char* name) { return key == name; });
}

// Whether a reference within the document leads to a place that Lowering visits.
bool LeadsToSchema(std::string_view path) {
  if (path == "#") return true;
  if (!path.starts_with("#/")) return false;
  const std::vector<std::string> steps = absl::StrSplit(absl::string_view(path.data() + 2, path.size() - 2), '/');
  for (size_t i = 0; i < steps.size(); ++i) {
    const std::string& step = steps[i];
    if (step == "items" || step == "additionalProperties") continue;
    const bool of_many = step == "$defs" || step == "definitions" || step == "properties" || step == "prefixItems" ||
                         step == "anyOf" || step == "oneOf";
    if (!of_many || ++i == steps.size()) return false;
  }
  return true;
}

class Lowering {
 public:
  absl::Status Run(Json& root) {
    Visit(root, "#");
    return error_;
  }
  std::vector<std::pair<std::string, std::string>> TakeRules() { return std::move(rules_); }

 private:
  bool Fail(const std::string& place, std::string_view what) {
    if (error_.ok()) error_ = absl::InvalidArgumentError(absl::StrCat("schema, ", place, ": ", std::string(what)));
    return false;
  }
  bool Visit(Json& schema, const std::string& place);
  bool VisitAll(Json& schemas, const std::string& place);
  bool VisitAlone(Json& schema, const std::string& key, const std::string& place);
  bool VisitTypes(Json& schema, const std::string& place);
  bool Object(Json& schema, const std::string& place);
  bool Array(Json& schema, const std::string& place);
  bool String(Json& schema, const std::string& place);
  bool Number(Json& schema, const std::string& place, bool integer);
  bool Counts(Json& schema, const char* least, const char* most, const std::string& place);
  std::optional<NumberBound> Bound(const Json& schema, const char* key, const std::string& place, bool exclusive);
  bool Replace(Json& schema, std::string rule, const std::string& place);

  absl::Status error_;
  std::vector<std::pair<std::string, std::string>> rules_;
};

bool Lowering::VisitAll(Json& schemas, const std::string& place) {
  if (!schemas.is_object() && !schemas.is_array()) return Fail(place, "must hold schemas");
  if (schemas.is_array()) {
    for (size_t i = 0; i < schemas.size(); ++i)
      if (!Visit(schemas[i], absl::StrCat(place, "/", i))) return false;
    return true;
  }
  for (auto& [name, schema] : schemas.items())
    if (!Visit(schema, absl::StrCat(place, "/", name))) return false;
  return true;
}

// A keyword that decides alone: the converter does not look at what stands beside it.
bool Lowering::VisitAlone(Json& schema, const std::string& key, const std::string& place) {
  for (const auto& [name, value] : schema.items())
    if (name != key && !IsAnnotation(name))
      return Fail(place, absl::StrCat("\"", name, "\" beside \"", key, "\" is not supported"));
  if (key == "$ref") {  // where it leads is visited there, if it is a place that Visit comes to
    const Json& path = schema[key];
    return (path.is_string() && LeadsToSchema(path.get<std::string>())) ||
           Fail(place, "\"$ref\" must lead to \"#\", or to a schema under $defs, definitions, properties or items");
  }
  return VisitAll(schema[key], absl::StrCat(place, "/", key));
}

// {"type": ["a", "b"], ...} is one alternative for each type.
bool Lowering::VisitTypes(Json& schema, const std::string& place) {
  const Json types = schema["type"];
  if (types.empty()) return Fail(place, "\"type\" is empty");
  Json alternatives = Json::array();
  for (const Json& type : types) {
    if (!type.is_string()) return Fail(place, "\"type\" must be a string or an array of strings");
    Json alternative = schema;
    alternative["type"] = type;
    for (const char* key : {"$defs", "definitions"}) alternative.erase(key);
    alternatives.push_back(std::move(alternative));
  }
  Json lowered = Json::object({{"anyOf", std::move(alternatives)}});
  for (const char* key : {"$defs", "definitions"})
    if (schema.contains(key)) lowered[key] = schema[key];
  schema = std::move(lowered);
  return VisitAll(schema["anyOf"], place);
}

bool Lowering::Visit(Json& schema, const std::string& place) {
  if (schema.is_boolean() && schema.get<bool>()) schema = Json::object();
  if (!schema.is_object()) return Fail(place, "must be an object that is a schema");
  for (const char* key : kUnsupported)
    if (schema.contains(key)) return Fail(place, absl::StrCat("\"", key, "\" is not supported"));
  for (const char* key : {"$defs", "definitions"})
    if (schema.contains(key) && !VisitAll(schema[key], absl::StrCat(place, "/", key))) return false;
  if (schema.contains("allOf")) {
    Json& all = schema["allOf"];
    if (!all.is_array() || all.size() != 1) return Fail(place, "\"allOf\" of several schemas is not supported");
    Json one = all[0];  // as some generators wrap a reference
    schema.erase("allOf");
    if (!one.is_object()) return Fail(place + "/allOf/0", "must be a schema");
    for (const auto& [name, value] : schema.items())
      if (IsAnnotation(name) && !one.contains(name)) one[name] = value;
    for (const auto& [name, value] : schema.items())
      if (!IsAnnotation(name) && name != "type")
        return Fail(place, absl::StrCat("\"", name, "\" beside \"allOf\" is not supported"));
    schema = std::move(one);
    return Visit(schema, place);
  }
  for (const char* key : {"$ref", "anyOf", "oneOf"})
    if (schema.contains(key)) return VisitAlone(schema, key, place);
  if (schema.contains("const") || schema.contains("enum")) return true;
  if (schema.contains("type") && schema["type"].is_array()) return VisitTypes(schema, place);

  std::string type = schema.contains("type") && schema["type"].is_string() ? schema["type"].get<std::string>() : "";
  if (schema.contains("type") && type.empty()) return Fail(place, "\"type\" must be a string or an array of strings");
  const auto has = [&](std::initializer_list<const char*> keys) {
    return std::any_of(keys.begin(), keys.end(), [&](const char* key) { return schema.contains(key); });
  };
  if (type.empty()) {  // what is said of one type only is taken to mean that type
    type = has({"properties", "required", "additionalProperties"})               ? "object"
           : has({"items", "prefixItems", "minItems", "maxItems"})               ? "array"
           : has({"pattern", "minLength", "maxLength", "format"})                ? "string"
           : has({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}) ? "number"
                                                                                 : "";
    if (type.empty()) return true;
    schema["type"] = type;
  }
  if (type == "object") return Object(schema, place);
  if (type == "array") return Array(schema, place);
  if (type == "string") return String(schema, place);
  if (type == "number" || type == "integer") return Number(schema, place, type == "integer");
  if (type == "boolean" || type == "null") return true;
  return Fail(place, absl::StrCat("there is no type \"", type, "\""));
}

bool Lowering::Object(Json& schema, const std::string& place) {
  std::set<std::string> names;
  if (schema.contains("properties")) {
    Json& properties = schema["properties"];
    if (!properties.is_object()) return Fail(place, "\"properties\" must be an object");
    for (auto& [name, property] : properties.items()) {
      names.insert(name);
      if (!Visit(property, absl::StrCat(place, "/properties/", name))) return false;
    }
  }
  if (schema.contains("additionalProperties") && !schema["additionalProperties"].is_boolean() &&
      !Visit(schema["additionalProperties"], place + "/additionalProperties"))
    return false;
  // The converter's rule for a name that is none of these takes one of them, written with an escape.
  if (!names.empty()) schema["additionalProperties"] = false;
  if (!schema.contains("required")) return true;
  if (!schema["required"].is_array()) return Fail(place, "\"required\" must be an array of names");
  for (const Json& name : schema["required"]) {
    if (!name.is_string()) return Fail(place, "\"required\" must be an array of names");
    if (!names.contains(name.get<std::string>()))
      return Fail(place, absl::StrCat("\"", name.get<std::string>(), "\" is required and not among the properties"));
  }
  return true;
}

bool Lowering::Counts(Json& schema, const char* least, const char* most, const std::string& place) {
  uint64_t low = 0, high = kCountMax;
  const auto read = [&](const char* key, uint64_t& count) {
    if (!schema.contains(key)) return true;
    Json& value = schema[key];
    if (value.is_number_float() && value.get<double>() == std::floor(value.get<double>()) && value.get<double>() >= 0 &&
        value.get<double>() <= static_cast<double>(kCountMax))
      value = static_cast<uint64_t>(value.get<double>());
    if (!value.is_number_unsigned() || value.get<uint64_t>() > kCountMax)
      return Fail(place, absl::StrCat("\"", key, "\" must be a whole number from 0 to ", kCountMax));
    count = value.get<uint64_t>();
    return true;
  };
  if (!read(least, low) || !read(most, high)) return false;
  if (low > high) return Fail(place, absl::StrCat("\"", least, "\" is above \"", most, "\""));
  return true;
}

bool Lowering::Array(Json& schema, const std::string& place) {
  if (!Counts(schema, "minItems", "maxItems", place)) return false;
  if (schema.contains("prefixItems")) {
    if (schema.contains("items") && schema["items"] != false)
      return Fail(place, "\"items\" beside \"prefixItems\" is not supported");
    schema["items"] = schema["prefixItems"];
    schema.erase("prefixItems");
  }
  if (!schema.contains("items")) return true;
  Json& items = schema["items"];
  if (!items.is_array()) return Visit(items, place + "/items");
  const uint64_t size = items.size();
  if (schema.value("minItems", uint64_t{0}) > size || schema.value("maxItems", kCountMax) < size)
    return Fail(place, absl::StrCat("there are exactly ", size, " items"));
  return VisitAll(items, place + "/items");
}

bool Lowering::String(Json& schema, const std::string& place) {
  if (!Counts(schema, "minLength", "maxLength", place)) return false;
  const bool lengths = schema.contains("minLength") || schema.contains("maxLength");
  if (schema.contains("pattern")) {
    if (!schema["pattern"].is_string()) return Fail(place, "\"pattern\" must be a string");
    if (lengths) return Fail(place, "\"pattern\" beside a length is not supported: write the length into the pattern");
    absl::StatusOr<std::string> rule = RegexToGbnf(schema["pattern"].get<std::string>());
    if (!rule.ok()) return Fail(place, std::string(rule.status().message()));
    return Replace(schema, *std::move(rule), place);
  }
  // A format says less than a length does: to most validators it is a remark.
  if (lengths) schema.erase("format");
  return true;
}

std::optional<NumberBound> Lowering::Bound(const Json& schema, const char* key, const std::string& place,
                                           bool exclusive) {
  if (!schema.contains(key)) return std::nullopt;
  const Json& value = schema[key];
  if (!value.is_number()) {
    Fail(place, absl::StrCat("\"", key, "\" must be a number"));
    return std::nullopt;
  }
  if (value.is_number_integer()) return NumberBound{value.dump(), exclusive};
  std::array<char, 512> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value.get<double>(), std::chars_format::fixed);
  return NumberBound{std::string(text.data(), end.ptr), exclusive};
}

bool Lowering::Number(Json& schema, const std::string& place, bool integer) {
  const auto pick = [&](const char* plain, const char* strict, bool largest) {
    auto a = Bound(schema, plain, place, false), b = Bound(schema, strict, place, true);
    if (!a || !b) return a ? a : b;
    const double x = schema[plain].get<double>(), y = schema[strict].get<double>();
    return x == y || (x < y) == largest ? b : a;
  };
  const auto low = pick("minimum", "exclusiveMinimum", true), high = pick("maximum", "exclusiveMaximum", false);
  if (!error_.ok()) return false;
  if (!low && !high) return true;
  std::string rule = NumberRangeRule(low, high, integer);
  if (rule.empty()) return Fail(place, "no number of at most 15 digits lies within the limits");
  return Replace(schema, std::move(rule), place);
}

bool Lowering::Replace(Json& schema, std::string rule, const std::string& place) {
  if (rules_.size() >= kRulesMax) return Fail(place, "too many patterns and limits");
  const std::string name = absl::StrCat(std::string(kRuleName), rules_.size());
  rules_.emplace_back(name, std::move(rule));
  Json lowered = Json::object({{"const", name}});
  for (const char* key : {"$defs", "definitions"})
    if (schema.contains(key)) lowered[key] = schema[key];
  schema = std::move(lowered);
  return true;
}

void ReplaceAll(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

absl::Status TooLarge(std::string_view place, std::string_view what, uint64_t got, uint64_t limit) {
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(place), " has ", got, " ", std::string(what), ", more than ", limit));
}

uint64_t DepthOf(std::string_view json) {
  uint64_t depth = 0, deepest = 0;
  bool text = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (text) {
      if (c == '\\') ++i;
      text = c != '"';
    } else if (c == '"') {
      text = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if ((c == '}' || c == ']') && depth > 0) {
      --depth;
    }
  }
  return deepest;
}

// Properties that may be left out; names that `required` repeats, or that are no property, count for nothing.
uint64_t OptionalProperties(const Json& properties, const Json* required) {
  std::set<std::string> names;
  if (required != nullptr && required->is_array())
    for (const Json& name : *required)
      if (name.is_string() && properties.contains(name.get<std::string>())) names.insert(name.get<std::string>());
  return properties.size() - names.size();
}

bool Repeats(const Json& types) {
  std::set<Json> seen;
  return std::any_of(types.begin(), types.end(), [&](const Json& type) { return !seen.insert(type).second; });
}

void AddCost(const Json& json, uint64_t names, SchemaCost& cost) {
  cost.names = std::max(cost.names, names);
  if (json.is_object()) {
    if (json.contains("$ref")) {
      ++cost.references;
      if (json["$ref"].is_string()) cost.names = std::max<uint64_t>(cost.names, json["$ref"].get<std::string>().size());
    }
    if (json.contains("properties") && json["properties"].is_object()) {
      const uint64_t optional =
          OptionalProperties(json["properties"], json.contains("required") ? &json["required"] : nullptr);
      cost.optional += optional * optional;
    }
    if (json.contains("type") && json["type"].is_array()) cost.repeats |= Repeats(json["type"]);
  }
  if (json.is_array())
    for (const Json& inner : json) AddCost(inner, names, cost);
  if (json.is_object())
    for (const auto& [name, inner] : json.items()) AddCost(inner, names + name.size(), cost);
}

absl::StatusOr<Json> ParseWithinLimits(std::string_view schema, std::string_view place, SchemaCost& cost) {
  constexpr uint64_t kReferencesMax = 1024, kOptionalMax = 500, kNamesMax = 4096;
  if (schema.size() > kSchemaBytesMax) return TooLarge(place, "bytes", schema.size(), kSchemaBytesMax);
  if (absl::Status status = CheckJsonDepth(schema, kSchemaDepthMax, place); !status.ok()) return status;
  Json json = Json::parse(schema, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return absl::InvalidArgumentError(absl::StrCat(std::string(place), " is not JSON"));
  AddCost(json, 0, cost);
  if (cost.repeats) return absl::InvalidArgumentError(absl::StrCat(std::string(place), ": \"type\" names one twice"));
  if (cost.names > kNamesMax) return TooLarge(place, "bytes of names on one path", cost.names, kNamesMax);
  if (cost.references > kReferencesMax) return TooLarge(place, "references", cost.references, kReferencesMax);
  if (cost.optional > kOptionalMax * kOptionalMax)
    return TooLarge(place, "optional properties", static_cast<uint64_t>(std::sqrt(static_cast<double>(cost.optional))),
                    kOptionalMax);
  return json;
}

}  // namespace

absl::Status CheckSchemaSize(std::string_view schema, std::string_view place, SchemaCost& cost) {
  return ParseWithinLimits(schema, place, cost).status();
}

absl::Status CheckJsonDepth(std::string_view json, uint32_t depth_max, std::string_view place) {
  const uint64_t depth = DepthOf(json);
  return depth > depth_max ? TooLarge(place, "levels", depth, depth_max) : absl::OkStatus();
}

std::string WithStrictPrimitives(std::string gbnf) {
  ReplaceAll(gbnf, R"("u" [0-9a-fA-F]{4})", R"("u" ([0-9a-cA-CefEF] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2}))");
  ReplaceAll(gbnf, R"(([eE] [-+]? integral-part)?)", R"(([eE] [-+]? [1-9] [0-9]?)?)");
  ReplaceAll(gbnf, R"([^"\\] | "\\" ( ["\\/ bfnrt])", R"([^"\\\x7F\x00-\x1F] | "\\" ( ["\\/bfnrt])");
  // Names of properties that are none of the given ones: characters that need an escape are no part of them.
  constexpr std::string_view kOtherName = R"( ::= ["] ( )";
  for (size_t at = 0; (at = gbnf.find(kOtherName, at)) != std::string::npos; at += kOtherName.size()) {
    const size_t end = std::min(gbnf.find('\n', at), gbnf.size());
    std::string rule = gbnf.substr(at, end - at);
    ReplaceAll(rule, "[^\"", R"([^"\\\x7F\x00-\x1F)");
    gbnf.replace(at, end - at, rule);
  }
  return gbnf;
}

std::string LoweredSchema::Complete(std::string gbnf) const {
  // A constant stands in the grammar as "\"name\"": what is left of it is the name, a rule's.
  std::set<std::string_view> names;
  for (const auto& [name, body] : rules) names.insert(name);
  constexpr std::string_view kOpen = R"("\")", kClose = R"(\"")";
  std::string completed;
  size_t from = 0;
  for (size_t at = 0;
       (at = gbnf.find(absl::StrCat(std::string(kOpen), std::string(kRuleName)), at)) != std::string::npos;) {
    const size_t begin = at + kOpen.size(), end = gbnf.find(kClose, begin);
    if (end == std::string::npos) break;
    const std::string_view name = std::string_view(gbnf).substr(begin, end - begin);
    at = end + kClose.size();
    if (!names.contains(name)) continue;
    completed.append(gbnf, from, begin - kOpen.size() - from).append(name);
    from = at;
  }
  gbnf = completed.append(gbnf, from);
  for (const auto& [name, body] : rules) absl::StrAppend(&gbnf, "\n", name, " ::= ", body, "\n");
  if (!rules.empty())
    absl::StrAppend(&gbnf, R"(reprise-char ::= [^"\\\x7F\x00-\x1F] | [\\] (["\\bfnrt] | "u" [0-9a-fA-F]{4}))", "\n");
  return WithStrictPrimitives(std::move(gbnf));
}

// {"$ref": "#"} is the whole document, which the converter does not follow: it becomes a definition.
bool PointAtRoot(Json& json) {
  bool found = false;
  if (json.is_object() && json.contains("$ref") && json["$ref"] == "#") {
    json["$ref"] = absl::StrCat("#/$defs/", std::string(kRootName));
    found = true;
  }
  if (json.is_structured())
    for (Json& inner : json) found |= PointAtRoot(inner);
  return found;
}
void NameRoot(Json& json) {
  if (!json.is_object() || !PointAtRoot(json)) return;
  Json root = json;
  root.erase("$defs");
  if (!json.contains("$defs") || !json["$defs"].is_object()) json["$defs"] = Json::object();
  json["$defs"][std::string(kRootName)] = std::move(root);
}

absl::StatusOr<LoweredSchema> LowerJsonSchema(std::string_view schema) {
  SchemaCost cost;
  absl::StatusOr<Json> json = ParseWithinLimits(schema, "the schema", cost);
  if (!json.ok()) return json.status();
  NameRoot(*json);
  Lowering lowering;
  if (absl::Status status = lowering.Run(*json); !status.ok()) return status;
  return LoweredSchema{.json = json->dump(-1, ' ', false, Json::error_handler_t::replace),
                       .rules = lowering.TakeRules()};
}

absl::StatusOr<std::string> JsonSchemaToGbnf(std::string_view schema) {
  absl::StatusOr<LoweredSchema> lowered = LowerJsonSchema(schema);
  if (!lowered.ok()) return lowered.status();
  try {
    return lowered->Complete(json_schema_to_grammar(common_json::parse(lowered->json)));
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("schema: ", error.what()));
  }
}

}  // namespace reprise
