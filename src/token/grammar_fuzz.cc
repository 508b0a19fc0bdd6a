// JSON schemas and GBNF from a client: an error or a grammar that can be walked, in bounded time. No
// model: what needs a vocabulary (tokens by name) is refused by the text alone.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "token/gbnf.h"
#include "token/grammar_machine.h"
#include "token/json_schema.h"

namespace reprise {
namespace {

// ParseGbnf asks the tokenizer only about <tokens>; a text without them may come with any.
const Tokenizer& AnyTokenizer() {
  alignas(alignof(std::max_align_t)) static std::byte nothing[sizeof(Tokenizer)];
  return reinterpret_cast<const Tokenizer&>(nothing);
}

void Walk(std::string_view gbnf, std::string_view text) {
  if (gbnf.find('<') != std::string_view::npos) return;
  auto rules = ParseGbnf(AnyTokenizer(), gbnf);
  if (!rules.ok()) return;
  GrammarMachine machine(std::make_shared<const GrammarRules>(*std::move(rules)));
  auto at = machine.start();
  for (const char byte : text.substr(0, 64)) {
    if (GrammarMachine::dead(at)) return;
    CHECK(!machine.MustEnd(at) || machine.MayEnd(at));
    (void)machine.MayComplete(at);
    at = machine.Trim(machine.Byte(at, static_cast<uint8_t>(byte)));
  }
}

void Check(std::string_view input) {
  const size_t cut = input.find('\0');
  const std::string_view source = input.substr(0, cut);
  const std::string_view text = cut == std::string_view::npos ? std::string_view() : input.substr(cut + 1);
  Walk(source, text);
  if (auto gbnf = JsonSchemaToGbnf(source); gbnf.ok()) Walk(*gbnf, text);
}

}  // namespace
}  // namespace reprise

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  reprise::Check({reinterpret_cast<const char*>(data), size});
  return 0;
}
