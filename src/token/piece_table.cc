#include "token/piece_table.h"

#include <algorithm>

#include "llama.h"
#include "token/tokenizer.h"

namespace reprise {

PieceTable::PieceTable(const Tokenizer& tokenizer) {
  const uint32_t vocab_size = tokenizer.vocab_size();
  begin_.reserve(vocab_size + 1);
  begin_.push_back(0);
  for (uint32_t id = 0; id < vocab_size; ++id) {
    const TokenId token(static_cast<int32_t>(id));
    const std::string piece = tokenizer.Piece(token, /*special=*/true);
    bytes_.insert(bytes_.end(), piece.begin(), piece.end());
    begin_.push_back(static_cast<uint32_t>(bytes_.size()));
    end_.push_back(tokenizer.IsEndOfGeneration(token));
    control_.push_back(end_.back() || llama_vocab_is_control(tokenizer.vocab(), token.value()) ||
                       tokenizer.Piece(token, /*special=*/false).empty());
    if (!control_.back() && !piece.empty()) sorted_.push_back({token});
  }
  std::sort(sorted_.begin(), sorted_.end(), [this](const Entry& a, const Entry& b) {
    return piece(a.token) != piece(b.token) ? piece(a.token) < piece(b.token) : a.token < b.token;
  });
  for (size_t i = 1; i < sorted_.size(); ++i) {
    const std::string_view before = piece(sorted_[i - 1].token), here = piece(sorted_[i].token);
    const size_t most = std::min<size_t>({before.size(), here.size(), 255});
    sorted_[i].shared =
        static_cast<uint8_t>(std::mismatch(before.begin(), before.begin() + most, here.begin()).first - before.begin());
  }
}

}  // namespace reprise
