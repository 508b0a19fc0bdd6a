// Beginnings of prompts that an operator declares to be everyone's, from text files: each is what every chat begins
// with that has the file's text as its system message.
//
// Ownership: values. Threads: any.
// Errors:    those of ReadTextFile, of Tokenizer and of ChatTemplate: no template, or one that refuses system messages.
// Design:    docs/decisions/0013-shared-prefixes.md
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "token/chat_template.h"
#include "token/tokenizer.h"

namespace reprise {

// The tokens that the prompts of such chats have in common, whatever their user says.
absl::StatusOr<std::vector<TokenId>> SharedPrefixOf(std::string_view system_text, const Tokenizer& tokenizer,
                                                    const ChatTemplate& chat_template);

// Of files, without the line end at a file's end; empty for none. Loads the model's tokenizer for it.
// `template_text`: to use instead of the model's template, or empty.
absl::StatusOr<std::vector<std::vector<TokenId>>> ReadSharedPrefixes(const std::vector<std::string>& paths,
                                                                     const std::string& model_path,
                                                                     const std::string& template_text);

}  // namespace reprise
