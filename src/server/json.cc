#include "server/json.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace reprise {
namespace {

constexpr size_t kMessageBytesMax = 200;  // a parser's message may quote a whole body

// "[json.exception.parse_error.101] parse error at line 1 ..." -> "parse error at line 1 ...".
std::string Words(std::string_view what) {
  const size_t end = what.find("] ");
  if (what.starts_with('[') && end != std::string_view::npos) what.remove_prefix(end + 2);
  if (what.size() <= kMessageBytesMax) return std::string(what);
  return absl::StrCat(std::string(what.substr(0, kMessageBytesMax)), " ...");
}

// Builds the value while the bounds hold; the first thing that is wrong ends the parse.
class Builder : public nlohmann::json_sax<Json> {
 public:
  Builder(const JsonLimits& limits, Json* root) : limits_(limits), root_(root) {}

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t&) override { return Add(value); }
  bool string(string_t& value) override { return Add(std::move(value)); }
  bool binary(binary_t&) override { return Fail(InvalidJson("binary values are not JSON")); }
  bool start_object(size_t) override { return Open(Json::object()); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool end_array() override { return Close(); }
  bool key(string_t& value) override {
    key_ = std::move(value);
    return true;
  }
  bool end_object() override {
    std::vector<std::string_view> keys;
    for (const auto& [name, value] : open_.back()->get_ref<const Json::object_t&>()) keys.push_back(name);
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice != keys.end()) {
      return Fail(
          InvalidJson(absl::StrCat("the key \"", std::string(twice->substr(0, 64)), "\" appears twice in one object")));
    }
    return Close();
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    return Fail(InvalidJson(Words(error.what())));
  }

  MaybeError error() && { return std::move(error_); }

 private:
  bool Fail(RequestError error) {
    error_ = std::move(error);
    return false;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }
  bool Open(Json container) {
    if (open_.size() >= limits_.depth_max) {
      RequestError error = InvalidJson(absl::StrCat("JSON is nested deeper than ", limits_.depth_max, " levels"));
      error.limit = limits_.depth_max;
      return Fail(std::move(error));
    }
    return Add(std::move(container));
  }
  bool Add(Json value) {
    if (++values_ > limits_.values_max) {
      return Fail(BodyTooLarge(absl::StrCat("the body holds more than ", limits_.values_max, " JSON values"),
                               static_cast<double>(limits_.values_max), std::nullopt));
    }
    Json* const at = Place(std::move(value));
    // A container stays where it is while it is open: nothing is added beside it before it closes.
    if (at->is_structured()) open_.push_back(at);
    return true;
  }
  Json* Place(Json value) {
    if (open_.empty()) return &(*root_ = std::move(value));
    Json& parent = *open_.back();
    if (parent.is_array()) {
      auto& items = parent.get_ref<Json::array_t&>();
      return &items.emplace_back(std::move(value));
    }
    // Past the linear search of ordered_map::emplace: duplicates are looked for once, at the end.
    std::vector<std::pair<const std::string, Json>>& items = parent.get_ref<Json::object_t&>();
    return &items.emplace_back(std::move(key_), std::move(value)).second;
  }

  const JsonLimits& limits_;
  Json* const root_;
  std::vector<Json*> open_;  // from the root down
  std::string key_;
  uint64_t values_ = 0;
  MaybeError error_;
};

}  // namespace

MaybeError ParseJson(std::string_view text, const JsonLimits& limits, Json* out) {
  Builder builder(limits, out);
  if (Json::sax_parse(text.begin(), text.end(), &builder)) return std::nullopt;
  MaybeError error = std::move(builder).error();
  return error.has_value() ? std::move(error) : InvalidJson("the body is not JSON");
}

std::string Dump(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string_view KindOf(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::boolean:
      return "a boolean";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::number_float:
      return "a number with a fraction";
    default:
      return "an integer";
  }
}

}  // namespace reprise
