#include "server/field_values.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace reprise {
namespace {

constexpr double kIntegerDoubleMax = 9007199254740992;  // 2^53: above, a double is not one integer

RequestError OutOfRange(const std::string& param, const std::string& min, const std::string& max, const Json& value,
                        double limit) {
  return InvalidValue(param, absl::StrCat("`", param, "` must be from ", min, " to ", max, "; got ", Dump(value)),
                      limit, value.get<double>());
}

}  // namespace

MaybeError ReadBool(const std::string& param, const Json& value, bool* out) {
  if (!value.is_boolean()) return WrongType(param, KindOf(value), "true or false");
  *out = value.get<bool>();
  return std::nullopt;
}

MaybeError ReadInteger(const std::string& param, const Json& value, int64_t min, int64_t max, int64_t* out) {
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (std::nearbyint(number) != number || std::abs(number) > kIntegerDoubleMax) {
      return WrongType(param, KindOf(value), "an integer");
    }
    return ReadInteger(param, static_cast<int64_t>(number), min, max, out);
  }
  if (!value.is_number_integer()) return WrongType(param, KindOf(value), "an integer");
  const bool huge =
      value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  const int64_t number = huge ? std::numeric_limits<int64_t>::max() : value.get<int64_t>();
  if (huge || number < min || number > max) {
    return OutOfRange(param, absl::StrCat(min), absl::StrCat(max), value,
                      static_cast<double>(!huge && number < min ? min : max));
  }
  *out = number;
  return std::nullopt;
}

MaybeError ReadNumber(const std::string& param, const Json& value, double min, double max, double* out) {
  if (!value.is_number()) return WrongType(param, KindOf(value), "a number");
  const double number = value.get<double>();
  if (!(number >= min && number <= max)) {
    return OutOfRange(param, absl::StrCat(min), absl::StrCat(max), value, number < min ? min : max);
  }
  *out = number;
  return std::nullopt;
}

MaybeError ReadString(const std::string& param, const Json& value, std::string* out) {
  if (!value.is_string()) return WrongType(param, KindOf(value), "a string");
  *out = value.get_ref<const std::string&>();
  return std::nullopt;
}

MaybeError ReadBoundedString(const std::string& param, const Json& value, uint64_t bytes_min, uint64_t bytes_max,
                             std::string* out) {
  if (!value.is_string()) return WrongType(param, KindOf(value), "a string");
  const auto& text = value.get_ref<const std::string&>();
  if (text.size() < bytes_min || text.size() > bytes_max) {
    return InvalidValue(
        param, absl::StrCat("`", param, "` must have ", bytes_min, " to ", bytes_max, " bytes; it has ", text.size()),
        static_cast<double>(text.size() < bytes_min ? bytes_min : bytes_max), static_cast<double>(text.size()));
  }
  *out = text;
  return std::nullopt;
}

MaybeError ReadName(const std::string& param, const Json& value, std::string* out) {
  std::string name;
  if (auto error = ReadBoundedString(param, value, 1, kNameBytesMax, &name)) return error;
  const bool fits = std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return c < 0x80 &&
           (std::isalnum(c) != 0 || std::string_view("_.:/-").find(static_cast<char>(c)) != std::string_view::npos);
  });
  if (!fits) {
    return InvalidValue(param,
                        absl::StrCat("`", param, "` may have letters, digits and any of `_.:/-`; got ", Dump(value)));
  }
  *out = std::move(name);
  return std::nullopt;
}

MaybeError ReadBits(const std::string& param, const Json& value, uint64_t* out) {
  if (!value.is_number_integer()) return WrongType(param, KindOf(value), "an integer of 64 bits");
  *out = value.is_number_unsigned() ? value.get<uint64_t>() : static_cast<uint64_t>(value.get<int64_t>());
  return std::nullopt;
}

bool IsEmpty(const Json& value) {
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return value.is_null() || (value.is_structured() && value.empty());
}

RequestError UnknownField(const std::string& parent, std::string_view key, std::span<const std::string_view> known) {
  // The distance to a name of a megabyte tells nothing and costs much.
  const std::string shown(key.substr(0, 64));
  std::string_view nearest;
  size_t nearest_distance = std::numeric_limits<size_t>::max();
  for (const std::string_view name : known) {
    const size_t distance = EditDistance(shown, name);
    if (distance < nearest_distance) {
      nearest_distance = distance;
      nearest = name;
    }
  }
  RequestError error;
  error.http_status = 400;
  error.code = "unknown_field";
  error.param = parent.empty() ? shown : absl::StrCat(parent, ".", shown);
  error.message =
      absl::StrCat("`", error.param, "` is not a field of this request; ",
                   known.empty() ? "it has none" : absl::StrCat("the nearest one is `", std::string(nearest), "`"));
  return error;
}

}  // namespace reprise
