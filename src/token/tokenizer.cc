#include "token/tokenizer.h"

#include <array>
#include <filesystem>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "gguf.h"
#include "llama.h"
#include "spdlog/spdlog.h"
#include "token/library_log.h"
#include "token/piece_table.h"

namespace reprise {
namespace {

constexpr char kTokensKey[] = "tokenizer.ggml.tokens";
constexpr char kMergesKey[] = "tokenizer.ggml.merges";

struct FreeGguf {
  void operator()(gguf_context* gguf) const { gguf_free(gguf); }
};
using GgufPtr = std::unique_ptr<gguf_context, FreeGguf>;

struct FreeModel {
  void operator()(llama_model* model) const { llama_model_free(model); }
};

GgufPtr ReadMetadata(const std::string& path) {
  return GgufPtr(gguf_init_from_file(path.c_str(), {/*no_alloc=*/true, /*ctx=*/nullptr}));
}

// The strings of an array; -1 where the key is missing or is something else.
int64_t StringArray(const gguf_context* gguf, const char* key) {
  const int64_t id = gguf_find_key(gguf, key);
  if (id < 0 || gguf_get_kv_type(gguf, id) != GGUF_TYPE_ARRAY || gguf_get_arr_type(gguf, id) != GGUF_TYPE_STRING) {
    return -1;
  }
  return id;
}

// What llama.cpp asserts instead of reporting.
absl::Status CheckVocabulary(const gguf_context* gguf) {
  const int64_t id = StringArray(gguf, kTokensKey);
  if (id < 0) return absl::InvalidArgumentError(absl::StrCat(kTokensKey, ": must be an array of strings"));
  const size_t n = gguf_get_arr_n(gguf, id);
  if (n == 0 || n > INT32_MAX) {
    return absl::InvalidArgumentError(absl::StrCat(kTokensKey, ": has ", n, " tokens"));
  }
  std::unordered_set<std::string> seen;
  seen.reserve(n);
  for (size_t i = 0; i < n; ++i) {
    std::string text = gguf_get_arr_str(gguf, id, i);
    if (text.empty()) text = absl::StrCat("[EMPTY_", i, "]");  // llama.cpp's name for it
    if (!seen.insert(std::move(text)).second) {
      return absl::InvalidArgumentError(absl::StrCat(kTokensKey, ": token ", i, " occurs twice"));
    }
  }
  return absl::OkStatus();
}

// Calibrated on SmolLM2, Qwen2.5 and Gemma 3 (tokenizer_test): per token a row with its text, an entry
// of the map from text and the cached piece, and a row of the piece table; per merge an entry with two texts.
uint64_t VocabularyBytes(const gguf_context* gguf) {
  constexpr uint64_t kBytesFixed = 1 << 20, kBytesPerToken = 288, kBytesPerMerge = 192;
  const int64_t tokens = StringArray(gguf, kTokensKey), merges = StringArray(gguf, kMergesKey);
  return kBytesFixed + (tokens < 0 ? 0 : gguf_get_arr_n(gguf, tokens) * kBytesPerToken) +
         (merges < 0 ? 0 : gguf_get_arr_n(gguf, merges) * kBytesPerMerge);
}

}  // namespace

struct Tokenizer::Impl {
  std::unique_ptr<llama_model, FreeModel> model;
  const llama_vocab* vocab = nullptr;
  Region accounted;
  mutable std::once_flag pieces_once;
  mutable std::unique_ptr<const PieceTable> pieces;

  // Throws what llama.cpp throws.
  std::vector<TokenId> Encode(std::string_view text, bool add_special, bool parse_special) const;
};

std::vector<TokenId> Tokenizer::Impl::Encode(std::string_view text, bool add_special, bool parse_special) const {
  std::vector<llama_token> ids(text.size() / 2 + 16);
  const auto encode = [&] {
    return llama_tokenize(vocab, text.data(), static_cast<int32_t>(text.size()), ids.data(),
                          static_cast<int32_t>(ids.size()), add_special, parse_special);
  };
  int32_t n = encode();
  if (n < 0) {  // -n is what it takes
    ids.resize(-n);
    n = encode();
  }
  CHECK_GE(n, 0);
  std::vector<TokenId> tokens;
  tokens.reserve(n);
  for (int32_t i = 0; i < n; ++i) tokens.emplace_back(ids[i]);
  return tokens;
}

Tokenizer::Tokenizer() : impl_(std::make_unique<Impl>()) {}
Tokenizer::~Tokenizer() = default;

uint64_t Tokenizer::EstimateBytes(const std::string& gguf_path) {
  RouteLibraryLog();
  const GgufPtr gguf = ReadMetadata(gguf_path);
  return gguf == nullptr ? 0 : VocabularyBytes(gguf.get());
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& gguf_path, Ledger& ledger) {
  RouteLibraryLog();
  static std::once_flag once;
  std::call_once(once, llama_backend_init);
  std::error_code error;
  if (!std::filesystem::exists(gguf_path, error)) return absl::NotFoundError(absl::StrCat("no file ", gguf_path));

  LibraryErrors errors;
  const GgufPtr gguf = ReadMetadata(gguf_path);
  if (gguf == nullptr) return absl::InvalidArgumentError(absl::StrCat(gguf_path, ": ", errors.first()));
  if (absl::Status status = CheckVocabulary(gguf.get()); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(gguf_path, ": ", status.message()));
  }
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer);
  Impl& impl = *tokenizer->impl_;
  impl.accounted = ledger.Account("tokenizer", VocabularyBytes(gguf.get()));
  try {
    llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    // From the metadata, not from the file: tensors and hyperparameters are not its business here.
    impl.model.reset(llama_model_init_from_user(
        gguf.get(), [](ggml_tensor*, void*) {}, nullptr, params));
    if (impl.model == nullptr) return absl::InvalidArgumentError(absl::StrCat(gguf_path, ": ", errors.first()));
    impl.vocab = llama_model_get_vocab(impl.model.get());
    if (llama_vocab_type(impl.vocab) == LLAMA_VOCAB_TYPE_NONE) {
      return absl::InvalidArgumentError(absl::StrCat(gguf_path, ": tokenizer.ggml.model: there is no tokenizer"));
    }
    // A vocabulary without tokens for some bytes fails here, not in the middle of a request.
    for (int byte = 1; byte < 256; ++byte) {
      const char text = static_cast<char>(byte);
      (void)impl.Encode({&text, 1}, /*add_special=*/true, /*parse_special=*/true);
    }
  } catch (const std::exception& exception) {
    return absl::InvalidArgumentError(absl::StrCat(gguf_path, ": the tokenizer is incomplete: ", exception.what()));
  }
  return tokenizer;
}

std::vector<TokenId> Tokenizer::Encode(std::string_view text, bool add_special, bool parse_special) const {
  return impl_->Encode(text, add_special, parse_special);
}

std::string Tokenizer::Piece(TokenId token, bool special) const {
  CHECK_GE(token.value(), 0);
  CHECK_LT(static_cast<uint32_t>(token.value()), vocab_size());
  std::array<char, 64> room;
  int32_t n = llama_token_to_piece(impl_->vocab, token.value(), room.data(), room.size(), /*lstrip=*/0, special);
  if (n >= 0) return std::string(room.data(), n);
  std::string piece(-n, '\0');
  n = llama_token_to_piece(impl_->vocab, token.value(), piece.data(), -n, /*lstrip=*/0, special);
  CHECK_EQ(static_cast<size_t>(n), piece.size());
  return piece;
}

std::string Tokenizer::Decode(std::span<const TokenId> tokens, bool special) const {
  std::string text;
  for (const TokenId token : tokens) text += Piece(token, special);
  return text;
}

uint32_t Tokenizer::vocab_size() const { return static_cast<uint32_t>(llama_vocab_n_tokens(impl_->vocab)); }
const PieceTable& Tokenizer::pieces() const {
  std::call_once(impl_->pieces_once, [this] { impl_->pieces = std::make_unique<PieceTable>(*this); });
  return *impl_->pieces;
}
bool Tokenizer::IsEndOfGeneration(TokenId token) const { return llama_vocab_is_eog(impl_->vocab, token.value()); }
const llama_model* Tokenizer::model() const { return impl_->model.get(); }
const llama_vocab* Tokenizer::vocab() const { return impl_->vocab; }

}  // namespace reprise
