#include "token/chat_reply.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "token/philox.h"
#include "token/reply_format.h"

namespace reprise {
namespace {

// What `now` has beyond `before`. Nothing if it took something back: what was said stays said.
std::string Added(const std::string& before, const std::string& now) {
  return now.starts_with(before) ? now.substr(before.size()) : "";
}

std::string CallId(uint64_t seed, uint32_t index) {
  const auto words = Philox4x32({index, 0, 0, 0x43414C4C},  // another stream than the sampler's
                                {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return absl::StrCat("call_", absl::Hex(uint64_t{words[1]} << 32 | words[0], absl::kZeroPad16));
}

}  // namespace

struct ChatReplyParser::Impl {
  std::shared_ptr<const ReplyFormat> format;
  uint64_t seed = 0;
  std::string text;       // the reply so far
  common_chat_msg shown;  // the sum of the deltas

  size_t parsed_bytes = 0;  // of `text`, the last time

  uint32_t depth = 0;     // of open brackets in `text`, whatever they mean
  bool too_deep = false;  // no more is parsed; what follows is content

  bool plain() const { return format == nullptr || format->plain; }
  // The reply is parsed from its start each time, so the longer it is, the more has to be new: all of them together
  // cost about 64 times the last.
  bool worth_parsing() const { return too_deep || text.size() - parsed_bytes >= parsed_bytes / 64; }
  size_t BytesToParse(std::string_view added);
  ChatDelta Parse(bool partial);
  void AddToolCalls(const common_chat_msg& message, bool partial, ChatDelta& delta);
};

// Those before the first bracket that is too deep: the parser reads JSON by recursion, and 5,000 brackets, which a
// model can be brought to write, use up a stack.
size_t ChatReplyParser::Impl::BytesToParse(std::string_view added) {
  constexpr uint32_t kDepthMax = 512;
  for (size_t i = 0; i < added.size(); ++i) {
    if (added[i] == '[' || added[i] == '{') ++depth;
    if ((added[i] == ']' || added[i] == '}') && depth > 0) --depth;
    if (depth > kDepthMax) {
      too_deep = true;
      return i;
    }
  }
  return added.size();
}

ChatDelta ChatReplyParser::Impl::Parse(bool partial) {
  parsed_bytes = text.size();
  common_chat_msg message;
  try {
    message = common_chat_parse(text, partial, format->parser);
  } catch (const std::exception&) {
    if (partial) return {};
    // The reply does not follow its format, however it ended: the part of it that can be read counts, and without
    // one the text as it is.
    try {
      message = common_chat_parse(text, /*is_partial=*/true, format->parser);
    } catch (const std::exception&) {
      message = {};
    }
    if (message.empty()) message.content = text;
  }
  ChatDelta delta;
  delta.reasoning = Added(shown.reasoning_content, message.reasoning_content);
  delta.content = Added(shown.content, message.content);
  shown.reasoning_content += delta.reasoning;
  shown.content += delta.content;
  AddToolCalls(message, partial, delta);
  return delta;
}

void ChatReplyParser::Impl::AddToolCalls(const common_chat_msg& message, bool partial, ChatDelta& delta) {
  for (size_t i = 0; i < message.tool_calls.size(); ++i) {
    const common_chat_tool_call& call = message.tool_calls[i];
    const bool last = i + 1 == message.tool_calls.size();
    ToolCallDelta added{.index = static_cast<uint32_t>(i)};
    if (i == shown.tool_calls.size()) {
      // A name is whole once its arguments have begun, or something else follows.
      if (call.name.empty() || (partial && last && call.arguments.empty())) return;
      added.id = CallId(seed, added.index);
      added.name = call.name;
      shown.tool_calls.push_back({.name = call.name, .id = added.id});
    }
    added.arguments = Added(shown.tool_calls[i].arguments, call.arguments);
    shown.tool_calls[i].arguments += added.arguments;
    if (!added.id.empty() || !added.arguments.empty()) delta.tool_calls.push_back(std::move(added));
  }
}

ChatReplyParser::ChatReplyParser(std::shared_ptr<const ReplyFormat> format, uint64_t seed)
    : impl_(std::make_unique<Impl>()) {
  impl_->format = std::move(format);
  impl_->seed = seed;
  if (impl_->plain() || !impl_->format->parser.is_continuation) return;
  (void)impl_->Parse(/*partial=*/true);  // what the prompt holds of the message already is not part of the reply
}
ChatReplyParser::~ChatReplyParser() = default;

ChatDelta ChatReplyParser::Append(std::string_view text) {
  if (impl_->plain()) return {.content = std::string(text)};
  if (text.empty()) return {};
  if (impl_->too_deep) return {.content = std::string(text)};
  const size_t parsable = impl_->BytesToParse(text);
  impl_->text += text.substr(0, parsable);
  ChatDelta delta;
  if (impl_->worth_parsing()) delta = impl_->Parse(/*partial=*/true);
  delta.content += text.substr(parsable);
  return delta;
}

ChatDelta ChatReplyParser::Finish() {
  if (impl_->plain() || impl_->too_deep) return {};
  return impl_->Parse(/*partial=*/false);
}

uint32_t ChatReplyParser::tool_calls() const { return static_cast<uint32_t>(impl_->shown.tool_calls.size()); }

}  // namespace reprise
