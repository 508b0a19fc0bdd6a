// Text to tokens and back, by libllama's tokenizers (llama.h, vocabulary only).
//
// Ownership: owns the vocabulary. Threads: const methods from any thread at once.
// Errors:    Load: InvalidArgument naming what the file lacks; NotFound; the rest cannot fail.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "base/ledger.h"

struct llama_model;
struct llama_vocab;

namespace reprise {

class PieceTable;

class Tokenizer {
 public:
  // What the vocabulary of this file is estimated to take; accounted in the ledger as "tokenizer".
  static uint64_t EstimateBytes(const std::string& gguf_path);
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& gguf_path, Ledger& ledger);
  ~Tokenizer();

  // `add_special`: put BOS/EOS where the model's metadata says so. `parse_special`: text such as
  // "<|im_end|>" becomes the special token, else its letters.
  std::vector<TokenId> Encode(std::string_view text, bool add_special, bool parse_special) const;
  // The bytes of one token; not always whole UTF-8. `special`: render control tokens too.
  std::string Piece(TokenId token, bool special) const;
  std::string Decode(std::span<const TokenId> tokens, bool special) const;

  uint32_t vocab_size() const;
  // For grammars; made by the first call.
  const PieceTable& pieces() const;
  bool IsEndOfGeneration(TokenId token) const;
  const llama_model* model() const;  // for chat templates and grammars, in this folder only
  const llama_vocab* vocab() const;

 private:
  Tokenizer();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace reprise
