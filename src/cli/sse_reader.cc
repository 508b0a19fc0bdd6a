#include "cli/sse_reader.h"

namespace reprise {

absl::StatusOr<std::vector<std::string>> SseReader::Append(std::string_view bytes) {
  std::vector<std::string> events;
  for (const char c : bytes) {
    const bool second_half = after_return_ && c == '\n';
    after_return_ = c == '\r';
    if (second_half) continue;
    if (c == '\r' || c == '\n') {
      Line(events);
      continue;
    }
    if (line_.size() + data_.size() >= kEventBytesMax)
      return absl::InvalidArgumentError("an event of the stream is larger than 4 MiB");
    line_.push_back(c);
  }
  return events;
}

void SseReader::Line(std::vector<std::string>& events) {
  if (line_.empty()) {
    if (has_data_) events.push_back(std::move(data_));
    data_.clear();
    has_data_ = false;
    return;
  }
  constexpr std::string_view kField = "data:";
  if (std::string_view(line_).substr(0, kField.size()) == kField) {
    if (has_data_) data_.push_back('\n');
    const size_t start =
        line_.size() > kField.size() && line_[kField.size()] == ' ' ? kField.size() + 1 : kField.size();
    data_.append(line_, start, std::string::npos);
    has_data_ = true;
  }
  line_.clear();  // comments and other fields
}

}  // namespace reprise
