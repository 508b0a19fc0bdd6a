#include "token/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <fstream>
#include <random>
#include <thread>

#include "gguf.h"
#include "llama.h"
#include "token/real_models.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

constexpr char kUnicode[] =
    "Hello, world!  Two spaces.\n\tTabs\r\nGrüße aus Köln — “quotes”… 日本語のテキスト 한국어 العربية עברית "
    "🙂👩‍👩‍👧‍👦 e\xCC\x81 "
    "\xC2\xA0nbsp 12345 3.14 x_y snake_case camelCase <html> {\"json\": [1, 2]} ½ ℵ₀ 𝔘𝔫𝔦";

std::vector<int> Values(const std::vector<TokenId>& tokens) {
  std::vector<int> values;
  for (const TokenId token : tokens) values.push_back(token.value());
  return values;
}

// Writes a small vocabulary and lets the test spoil it.
struct TinyGguf {
  TinyGguf() : gguf(gguf_init_empty()), path(testing::TempDir() + "/tiny_" + std::to_string(getpid()) + ".gguf") {
    gguf_set_val_str(gguf, "general.architecture", "llama");
    gguf_set_val_str(gguf, "tokenizer.ggml.model", "gpt2");
    gguf_set_val_str(gguf, "tokenizer.ggml.pre", "default");
    SetTokens({"a", "b", "ab", "<s>"});
    const char* merges[] = {"a b"};
    gguf_set_arr_str(gguf, "tokenizer.ggml.merges", merges, 1);
  }
  ~TinyGguf() {
    gguf_free(gguf);
    std::remove(path.c_str());
  }
  void SetTokens(std::vector<const char*> tokens) {
    gguf_set_arr_str(gguf, "tokenizer.ggml.tokens", tokens.data(), tokens.size());
  }
  absl::StatusOr<std::unique_ptr<Tokenizer>> Load() {
    gguf_write_to_file(gguf, path.c_str(), /*only_meta=*/true);
    return Tokenizer::Load(path, ledger);
  }
  gguf_context* gguf;
  std::string path;
  Ledger ledger{uint64_t{1} << 30};
};

TEST(TokenizerTest, TextComesBack) {
  for (const RealModel& model : RealModels()) {
    const Tokenizer& t = model.tokenizer();
    for (const std::string& text : {std::string(kUnicode), std::string(""), std::string(" "), std::string("\n\n\n"),
                                    std::string(3000, 'a'), std::string("with \0 zero", 11)}) {
      const auto tokens = t.Encode(text, /*add_special=*/false, /*parse_special=*/false);
      EXPECT_EQ(t.Decode(tokens, /*special=*/false), text) << model.file;
    }
  }
}

void AppendUtf8(uint32_t c, std::string& text) {
  if (c < 0x80) {
    text += static_cast<char>(c);
  } else if (c < 0x800) {
    text += {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
  } else if (c < 0x10000) {
    text += {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
             static_cast<char>(0x80 | (c & 63))};
  } else {
    text += {static_cast<char>(0xF0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 63)),
             static_cast<char>(0x80 | (c >> 6 & 63)), static_cast<char>(0x80 | (c & 63))};
  }
}

// Of characters that are in use: SmolLM2's vocabulary has no token for bytes such as 0x16 and 0xF1, and
// loses them.
TEST(TokenizerTest, RandomUnicodeComesBack) {
  constexpr std::pair<uint32_t, uint32_t> kRanges[] = {{0x20, 0x7E},     {0xA1, 0x17F},    {0x370, 0x52F},
                                                       {0x2010, 0x206F}, {0x3041, 0x9FFF}, {0x1F300, 0x1F64F}};
  for (const RealModel& model : RealModels()) {
    std::mt19937 random(1);
    for (int i = 0; i < 300; ++i) {
      std::string text;
      for (uint32_t n = random() % 40; n > 0; --n) {
        const auto& [first, last] = kRanges[random() % std::size(kRanges)];
        AppendUtf8(first + random() % (last - first + 1), text);
      }
      const auto tokens = model.tokenizer().Encode(text, false, false);
      ASSERT_EQ(model.tokenizer().Decode(tokens, false), text) << model.file << " text " << i;
    }
  }
}

TEST(TokenizerTest, BytesThatAreNotUtf8DoNoHarm) {
  for (const RealModel& model : RealModels()) {
    std::mt19937 random(2);
    for (int i = 0; i < 500; ++i) {
      std::string bytes(random() % 30, '\0');
      for (char& byte : bytes) byte = static_cast<char>(random());
      for (const TokenId token : model.tokenizer().Encode(bytes, i % 2 == 0, i % 3 == 0)) {
        ASSERT_LT(static_cast<uint32_t>(token.value()), model.tokenizer().vocab_size());
      }
    }
  }
}

TEST(TokenizerTest, SpecialTextIsATokenOnlyWhenAsked) {
  const struct {
    const char* family;
    const char* text;
  } cases[] = {{"smollm2", "<|im_end|>"}, {"qwen2", "<|im_end|>"}, {"gemma3", "<end_of_turn>"}};
  for (const auto& c : cases) {
    const Tokenizer& t = RealModelOf(c.family).tokenizer();
    const auto parsed = t.Encode(c.text, false, /*parse_special=*/true);
    const auto letters = t.Encode(c.text, false, /*parse_special=*/false);
    ASSERT_EQ(parsed.size(), 1u) << c.family;
    EXPECT_GT(letters.size(), 1u) << c.family;
    EXPECT_TRUE(t.IsEndOfGeneration(parsed[0])) << c.family;
    EXPECT_FALSE(t.IsEndOfGeneration(letters[0])) << c.family;
    EXPECT_EQ(t.Piece(parsed[0], /*special=*/true), c.text);
    EXPECT_EQ(t.Piece(parsed[0], /*special=*/false), "");
    EXPECT_EQ(t.Decode(letters, false), c.text);
  }
}

TEST(TokenizerTest, BosIsAddedWhereTheModelSaysSo) {
  for (const auto& [family, bos] : {std::pair{"smollm2", false}, {"qwen2", false}, {"gemma3", true}}) {
    const Tokenizer& t = RealModelOf(family).tokenizer();
    const auto plain = t.Encode("Hello", false, false);
    const auto special = t.Encode("Hello", true, false);
    EXPECT_EQ(special.size(), plain.size() + bos) << family;
    if (bos) {
      EXPECT_EQ(special[0].value(), llama_vocab_bos(t.vocab()));
    }
  }
}

// The oracle: libllama on the whole file, not on the metadata alone.
TEST(TokenizerTest, EqualsLibllamaOnTheFile) {
  for (const RealModel& model : RealModels()) {
    llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    llama_model* oracle = llama_model_load_from_file(model.file.c_str(), params);
    ASSERT_NE(oracle, nullptr);
    const llama_vocab* vocab = llama_model_get_vocab(oracle);
    EXPECT_EQ(static_cast<uint32_t>(llama_vocab_n_tokens(vocab)), model.tokenizer().vocab_size());
    for (const bool special : {false, true}) {
      const std::string text = std::string(kUnicode) + "<|im_start|>user\nHi<|im_end|><bos><start_of_turn>";
      std::vector<int> expected(text.size() + 8);
      expected.resize(llama_tokenize(vocab, text.data(), static_cast<int>(text.size()), expected.data(),
                                     static_cast<int>(expected.size()), special, special));
      EXPECT_EQ(Values(model.tokenizer().Encode(text, special, special)), expected) << model.file;
    }
    for (int32_t id = 0; id < llama_vocab_n_tokens(vocab); ++id) {
      ASSERT_EQ(model.tokenizer().IsEndOfGeneration(TokenId(id)), llama_vocab_is_eog(vocab, id)) << id;
    }
    llama_model_free(oracle);
  }
}

TEST(TokenizerTest, EncodesFromManyThreads) {
  const Tokenizer& t = RealModelOf("smollm2").tokenizer();
  const auto expected = t.Encode(kUnicode, true, true);
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 50; ++n) EXPECT_EQ(t.Encode(kUnicode, true, true), expected);
    });
  }
}

TEST(TokenizerTest, LongTextsAreFine) {
  for (const RealModel& model : RealModels()) {
    for (const char* piece : {"a", " ", "word ", "1", "🙂", "\n"}) {
      std::string text;
      while (text.size() < 300000) text += piece;
      const auto tokens = model.tokenizer().Encode(text, false, false);
      EXPECT_EQ(model.tokenizer().Decode(tokens, false).size(), text.size()) << model.file << " '" << piece << "'";
    }
  }
}

TEST(TokenizerTest, EstimateCoversWhatIsTaken) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "counts what malloc handed out";
#endif
  for (const RealModel& model : RealModels()) {
    Ledger ledger(uint64_t{4} << 30);
    const uint64_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
    auto tokenizer = Tokenizer::Load(model.file, ledger);
    ASSERT_TRUE(tokenizer.ok());
    const uint64_t taken = mallinfo2().uordblks + mallinfo2().hblkhd - before;
    const uint64_t estimate = Tokenizer::EstimateBytes(model.file);
    EXPECT_GE(estimate, taken) << model.file;
    EXPECT_LE(estimate, 2 * taken) << model.file;
    EXPECT_EQ(ledger.taken_by_component().at("tokenizer"), estimate);
  }
}

TEST(TokenizerTest, MissingAndDamagedFilesAreErrors) {
  Ledger ledger(uint64_t{1} << 30);
  EXPECT_EQ(Tokenizer::Load("/nowhere/model.gguf", ledger).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Tokenizer::EstimateBytes("/nowhere/model.gguf"), 0u);
  const std::string path = testing::TempDir() + "/damaged_" + std::to_string(getpid()) + ".gguf";
  std::string head(100000, '\0');
  std::ifstream(RealModelOf("smollm2").file, std::ios::binary)
      .read(head.data(), static_cast<std::streamsize>(head.size()));
  for (const size_t size : {size_t{0}, size_t{3}, size_t{20}, size_t{5000}, head.size()}) {
    std::ofstream(path, std::ios::binary) << head.substr(0, size);
    EXPECT_EQ(Tokenizer::Load(path, ledger).status().code(), absl::StatusCode::kInvalidArgument) << size;
  }
  std::remove(path.c_str());
  EXPECT_EQ(ledger.taken_bytes(), 0u);
}

TEST(TokenizerTest, BadVocabulariesAreErrorsThatNameTheField) {
  const struct {
    const char* what;
    std::function<void(TinyGguf&)> spoil;
    const char* message;
  } cases[] = {
      {"no tokens", [](TinyGguf& f) { gguf_remove_key(f.gguf, "tokenizer.ggml.tokens"); }, "tokenizer.ggml.tokens"},
      {"empty", [](TinyGguf& f) { f.SetTokens({}); }, "tokenizer.ggml.tokens"},
      {"type", [](TinyGguf& f) { gguf_set_val_u32(f.gguf, "tokenizer.ggml.tokens", 3); }, "tokenizer.ggml.tokens"},
      {"twice",
       [](TinyGguf& f) {
         f.SetTokens({"a", "b", "a"});
       },
       "token 2 occurs twice"},
      {"empty token's name",
       [](TinyGguf& f) {
         f.SetTokens({"[EMPTY_1]", ""});
       },
       "token 1 occurs twice"},
      {"no model", [](TinyGguf& f) { gguf_remove_key(f.gguf, "tokenizer.ggml.model"); }, "tokenizer.ggml.model"},
      {"unknown model", [](TinyGguf& f) { gguf_set_val_str(f.gguf, "tokenizer.ggml.model", "psychic"); }, "psychic"},
      {"none", [](TinyGguf& f) { gguf_set_val_str(f.gguf, "tokenizer.ggml.model", "none"); }, "no tokenizer"},
      {"pre", [](TinyGguf& f) { gguf_set_val_str(f.gguf, "tokenizer.ggml.pre", "telepathy"); }, "telepathy"},
      {"no merges", [](TinyGguf& f) { gguf_remove_key(f.gguf, "tokenizer.ggml.merges"); }, "merges"},
      {"few scores",
       [](TinyGguf& f) {
         const float scores[] = {1, 2};
         gguf_set_arr_data(f.gguf, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, scores, 2);
       },
       "scores"},
      {"llama without bytes", [](TinyGguf& f) { gguf_set_val_str(f.gguf, "tokenizer.ggml.model", "llama"); },
       "incomplete"},
  };
  for (const auto& c : cases) {
    TinyGguf file;
    c.spoil(file);
    const auto tokenizer = file.Load();
    EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument) << c.what;
    EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr(c.message)) << c.what;
  }
  TinyGguf whole;  // control
  const auto tokenizer = whole.Load();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->Encode("ab", false, false), std::vector<TokenId>{TokenId(2)});
}

}  // namespace
}  // namespace reprise
