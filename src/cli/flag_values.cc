#include "cli/flag_values.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace reprise {
namespace {

constexpr size_t kKeyFileBytesMax = 1 << 20;
constexpr size_t kKeyBytesMax = 256;

}  // namespace

absl::StatusOr<uint32_t> ParseMilliseconds(std::string_view text) {
  struct Unit {
    std::string_view name;
    double milliseconds;
  };
  static constexpr std::array<Unit, 5> kUnits = {{{"us", 1e-3}, {"ms", 1}, {"s", 1e3}, {"m", 6e4}, {"h", 3.6e6}}};
  const size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  std::string_view unit_text = text.substr(digits);
  while (!unit_text.empty() && unit_text.front() == ' ') unit_text.remove_prefix(1);
  double number = 0;
  for (const Unit& unit : kUnits) {
    if (unit_text != unit.name || !absl::SimpleAtod(std::string(text.substr(0, digits)), &number)) continue;
    const double milliseconds = number * unit.milliseconds;
    if (milliseconds <= 3.6e6 * 24) return static_cast<uint32_t>(milliseconds);
    return absl::InvalidArgumentError(absl::StrCat("'", std::string(text), "' is more than 24h"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", std::string(text), "' is not a time; write a number and one of us ms s m h, as in 30s"));
}

absl::StatusOr<std::string> ReadTextFile(std::string_view flag, const std::string& path, size_t bytes_max) {
  const auto error = [&](auto... what) { return absl::StrCat(std::string(flag), " ", path, ": ", what...); };
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return absl::NotFoundError(error(std::strerror(errno)));
  if (S_ISDIR(info.st_mode)) return absl::InvalidArgumentError(error("is a directory; give a file"));
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(error("cannot be read: ", std::strerror(errno)));
  std::string text(bytes_max + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > bytes_max) return absl::InvalidArgumentError(error("is larger than ", bytes_max, " bytes"));
  if (text.empty()) return absl::InvalidArgumentError(error("is empty"));
  return text;
}

AdapterOptions ParseLora(const std::string& text) {
  const size_t colon = text.rfind(':');
  float scale = 1.0f;
  if (colon == std::string::npos) return {text, scale};
  const char* const end = text.data() + text.size();
  const auto [read, error] = std::from_chars(text.data() + colon + 1, end, scale);
  if (error != std::errc() || read != end) return {text, 1.0f};
  return {text.substr(0, colon), scale};
}

absl::StatusOr<KeyFile> ReadKeyFile(const std::string& path) {
  const auto text = ReadTextFile("--api-key-file", path, kKeyFileBytesMax);
  if (!text.ok()) return text.status();
  KeyFile file;
  std::istringstream lines(*text);
  uint32_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const std::string key(absl::StripAsciiWhitespace(line));
    if (key.empty() || key[0] == '#') continue;
    if (key.size() > kKeyBytesMax ||
        !std::all_of(key.begin(), key.end(), [](unsigned char c) { return c > ' ' && c < 127; }))
      return absl::InvalidArgumentError(absl::StrCat("--api-key-file ", path, ": line ", number,
                                                     " is not a key: up to ", kKeyBytesMax,
                                                     " printable ASCII characters without spaces, one key a line"));
    if (std::find(file.keys.begin(), file.keys.end(), key) == file.keys.end()) file.keys.push_back(key);
  }
  if (file.keys.empty())
    return absl::InvalidArgumentError(absl::StrCat("--api-key-file ", path, " has no key; write one a line"));
  struct stat info {};
  if (stat(path.c_str(), &info) == 0 && (info.st_mode & (S_IRGRP | S_IROTH)) != 0)
    file.warning = absl::StrCat("other users may read ", path, "; chmod 600 ", path, " keeps the keys to you");
  return file;
}

bool IsLoopback(std::string_view host) { return host == "localhost" || host == "::1" || host.substr(0, 4) == "127."; }

}  // namespace reprise
