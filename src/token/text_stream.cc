#include "token/text_stream.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace reprise {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// What the first bytes of `bytes` are: `size` of them, a whole character or not; `open`: the end came
// before the character's.
struct Character {
  size_t size;
  bool whole;
  bool open;
};

// The table of well-formed byte sequences of the Unicode standard (3-7).
Character FirstCharacter(std::string_view bytes) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char lead = at(0);
  if (lead < 0x80) return {1, true, false};
  const size_t size = lead >= 0xC2 && lead <= 0xDF   ? 2
                      : lead >= 0xE0 && lead <= 0xEF ? 3
                      : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                     : 0;
  if (size == 0) return {1, false, false};
  unsigned char low = 0x80, high = 0xBF;  // of the second byte
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (size_t i = 1; i < size; ++i, low = 0x80, high = 0xBF) {
    if (i == bytes.size()) return {i, false, true};
    if (at(i) < low || at(i) > high) return {i, false, false};
  }
  return {size, true, false};
}

}  // namespace

std::string ToUtf8(std::string_view bytes, size_t* incomplete) {
  std::string text;
  text.reserve(bytes.size());
  if (incomplete != nullptr) *incomplete = 0;
  while (!bytes.empty()) {
    const Character character = FirstCharacter(bytes);
    if (character.open && incomplete != nullptr) {
      *incomplete = character.size;
      break;
    }
    text += character.whole ? bytes.substr(0, character.size) : kReplacement;
    bytes.remove_prefix(character.size);
  }
  return text;
}

TextStream::TextStream(const Tokenizer& tokenizer, std::vector<std::string> stop)
    : tokenizer_(tokenizer), stop_(std::move(stop)) {
  // Longest first: the first that matches at an end is the one to take.
  std::sort(stop_.begin(), stop_.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
  CHECK(stop_.empty() || !stop_.back().empty());
}

std::string TextStream::Append(TokenId token) { return AppendBytes(tokenizer_.Piece(token, /*special=*/false)); }

std::string TextStream::AppendBytes(std::string_view bytes) {
  if (stopped_) return "";
  const size_t old = held_.size();
  held_ += bytes;
  taken_ += bytes.size();
  for (size_t end = old + 1; end <= held_.size(); ++end) {
    const std::string_view so_far = std::string_view(held_).substr(0, end);
    for (const std::string& stop : stop_) {
      if (!so_far.ends_with(stop)) continue;
      stopped_ = true;
      stop_string_ = stop;
      held_.resize(end - stop.size());
      shown_ += held_.size();
      return ToUtf8(std::exchange(held_, ""), nullptr);
    }
  }
  // Bytes that a stop string may begin with stay.
  size_t keep = 0;
  for (const std::string& stop : stop_) {
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n) {
      if (std::string_view(held_).ends_with(std::string_view(stop).substr(0, n))) keep = n;
    }
  }
  size_t incomplete = 0;
  std::string text = ToUtf8(std::string_view(held_).substr(0, held_.size() - keep), &incomplete);
  const size_t shown = held_.size() - keep - incomplete;
  held_.erase(0, shown);
  shown_ += shown;
  return text;
}

std::string TextStream::Flush() {
  if (stopped_) return "";
  shown_ = taken_;
  return ToUtf8(std::exchange(held_, ""), nullptr);
}

}  // namespace reprise
