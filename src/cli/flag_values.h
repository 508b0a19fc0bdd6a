// Values of flags that are more than a word: times, files of keys, hosts.
//
// Ownership: values. Threads: any.
// Errors:    InvalidArgument and NotFound, naming the value and what is accepted.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/description.h"

namespace reprise {

// "30s", "1500 ms", "2m": us ms s m h. A bare number is refused: its unit would be a guess.
absl::StatusOr<uint32_t> ParseMilliseconds(std::string_view text);

// "FILE" or "FILE:SCALE"; a file whose name ends like a scale is given with one.
AdapterOptions ParseLora(const std::string& text);

// One key a line; empty lines and lines that begin with # do not count.
struct KeyFile {
  std::vector<std::string> keys;  // not empty, each once
  std::string warning;            // others may read the file; or empty
};
absl::StatusOr<KeyFile> ReadKeyFile(const std::string& path);

// The whole file, at most `bytes_max`. `flag` is named in errors.
absl::StatusOr<std::string> ReadTextFile(std::string_view flag, const std::string& path, size_t bytes_max);

// Whether only this machine can reach a server that listens there.
bool IsLoopback(std::string_view host);

}  // namespace reprise
