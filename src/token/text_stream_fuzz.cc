// A reply in pieces against the whole: the same text, the same stop, whole characters in every delta.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "token/text_stream.h"

namespace reprise {
namespace {

// AppendBytes never looks at the tokenizer; any will do.
const Tokenizer& AnyTokenizer() {
  alignas(alignof(std::max_align_t)) static std::byte nothing[sizeof(Tokenizer)];
  return reinterpret_cast<const Tokenizer&>(nothing);
}

std::string Take(std::string_view& bytes, size_t size) {
  const std::string taken(bytes.substr(0, size));
  bytes.remove_prefix(taken.size());
  return taken;
}

void Check(std::string_view input) {
  std::vector<std::string> stop;
  while (!input.empty() && stop.size() < 3 && input[0] % 2 != 0) {
    const size_t size = static_cast<unsigned char>(Take(input, 1)[0]) / 2 % 6 + 1;
    if (std::string text = Take(input, size); !text.empty()) stop.push_back(text);
  }
  TextStream pieces(AnyTokenizer(), stop);
  TextStream whole(AnyTokenizer(), stop);
  std::string all, shown;
  while (!input.empty()) {
    const size_t size = static_cast<unsigned char>(Take(input, 1)[0]) % 8;
    const std::string piece = Take(input, size);
    all += piece;
    const std::string delta = pieces.AppendBytes(piece);
    CHECK(delta == ToUtf8(delta, nullptr));
    shown += delta;
  }
  shown += pieces.Flush();
  std::string expected = whole.AppendBytes(all);
  expected += whole.Flush();
  CHECK(shown == expected);
  CHECK_EQ(pieces.stopped(), whole.stopped());
  CHECK_EQ(pieces.stop_string(), whole.stop_string());
  if (!pieces.stopped()) CHECK(shown == ToUtf8(all, nullptr));
}

}  // namespace
}  // namespace reprise

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  reprise::Check({reinterpret_cast<const char*>(data), size});
  return 0;
}
