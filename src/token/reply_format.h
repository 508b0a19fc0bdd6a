// What ChatTemplate::Prompt leaves for ChatReplyParser; llama.cpp's types stay in this folder.
//
// Ownership: a value, immutable once shared. Threads: any. Errors: none.
#pragma once

#include "chat.h"

namespace reprise {

struct ReplyFormat {
  common_chat_parser_params parser;
  bool plain = false;  // every byte is content: no tools, no reasoning, no wrapping
};

}  // namespace reprise
