#include "token/chat_template.h"

#include <mutex>
#include <regex>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "llama.h"
#include "token/json_schema.h"
#include "token/library_log.h"
#include "token/reply_format.h"

namespace reprise {
namespace {

common_chat_msg ToCommon(const ChatMessage& message) {
  common_chat_msg to;
  to.role = message.role;
  to.content = message.content;
  to.reasoning_content = message.reasoning;
  to.tool_call_id = message.tool_call_id;
  to.tool_name = message.name;
  for (const ToolCall& call : message.tool_calls)
    to.tool_calls.push_back({.name = call.name, .arguments = call.arguments, .id = call.id});
  return to;
}

common_chat_tool_choice ToCommon(ToolChoice choice) {
  switch (choice) {
    case ToolChoice::kAuto:
      return COMMON_CHAT_TOOL_CHOICE_AUTO;
    case ToolChoice::kNone:
      return COMMON_CHAT_TOOL_CHOICE_NONE;
    case ToolChoice::kRequired:
      return COMMON_CHAT_TOOL_CHOICE_REQUIRED;
  }
  return COMMON_CHAT_TOOL_CHOICE_AUTO;
}

// Of what messages hold: the template engine reads and writes it by recursion.
constexpr uint32_t kJsonDepthMax = 128;
constexpr size_t kToolNameMax = 256;
constexpr char kAnyObject[] = R"({"type": "object"})";

// Whether the parser makes content of all text, as far as a text shows that has what parsers look for.
bool IsPlain(const common_chat_parser_params& parser) {
  const std::string text = " \n<think>\n{\"name\": 1}</think> [x]\n```json\n<tool_call>\n\n ";
  try {
    for (const bool partial : {true, false}) {
      const common_chat_msg message = common_chat_parse(text, partial, parser);
      if (message.content != text || !message.reasoning_content.empty() || !message.tool_calls.empty()) return false;
    }
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

// llama.cpp's grammars for a required call let any text come first, and a model that prefers text never ends it. A
// caller who requires a call wants the call: of what may come before it, only reasoning stays.
std::string WithCallAtOnce(std::string gbnf) {
  const size_t begin = gbnf.find("root ::= "), end = std::min(gbnf.find('\n', begin), gbnf.size());
  if (begin == std::string::npos) return gbnf;
  static const std::regex text_before_call(R"((space|\)\?) until-\d+\?? (space )?tool-call)");
  const std::string root = gbnf.substr(begin, end - begin);
  return gbnf.replace(begin, end - begin, std::regex_replace(root, text_before_call, "$1 $2tool-call"));
}

// A last message of the assistant is one to go on with, as llama.cpp's server has it.
absl::Status ContinueLastMessage(const std::vector<ChatMessage>& messages, common_chat_templates_inputs& inputs) {
  if (messages.empty() || messages.back().role != "assistant") return absl::OkStatus();
  if (messages.size() >= 2 && messages[messages.size() - 2].role == "assistant")
    return absl::InvalidArgumentError("the last two messages are both the assistant's: which is to be continued?");
  if (!messages.back().tool_calls.empty())
    return absl::InvalidArgumentError(
        "the last message is the assistant's tool calls: add the tools' results, as messages with role \"tool\"");
  inputs.continue_final_message = COMMON_CHAT_CONTINUATION_AUTO;
  inputs.add_generation_prompt = false;
  return absl::OkStatus();
}

}  // namespace

struct ChatTemplate::Impl {
  const Tokenizer* tokenizer = nullptr;
  common_chat_templates_ptr templates;
  bool thinks = false;               // the template has a place for reasoning
  bool parallel_tool_calls = false;  // the template can write several calls in one message
  bool shows_schema = false;         // the template writes the reply's schema into the prompt
  mutable std::mutex mutex;          // the engine keeps state in the parsed program

  absl::StatusOr<common_chat_templates_inputs> Inputs(const ChatRequest& request) const;
  absl::StatusOr<std::shared_ptr<const Grammar>> GrammarOf(const common_chat_params& params,
                                                           const std::vector<TokenId>& written_tokens) const;
  absl::StatusOr<std::shared_ptr<const ReplyFormat>> FormatOf(const common_chat_params& params,
                                                              const common_chat_templates_inputs& inputs) const;
  absl::StatusOr<common_chat_params> Apply(const common_chat_templates_inputs& inputs) const;
  // The token that `text` is, if it is one.
  std::optional<TokenId> SpecialToken(const std::string& text) const;
};

std::optional<TokenId> ChatTemplate::Impl::SpecialToken(const std::string& text) const {
  const std::vector<TokenId> tokens = tokenizer->Encode(text, /*add_special=*/false, /*parse_special=*/true);
  if (tokens.size() != 1) return std::nullopt;
  return tokens[0];
}

absl::StatusOr<common_chat_templates_inputs> ChatTemplate::Impl::Inputs(const ChatRequest& request) const {
  common_chat_templates_inputs inputs;
  for (const ChatMessage& message : request.messages) {
    for (const ToolCall& call : message.tool_calls)
      if (absl::Status status = CheckJsonDepth(call.arguments, kJsonDepthMax,
                                               absl::StrCat("the arguments of the call of \"", call.name, "\""));
          !status.ok())
        return status;
    inputs.messages.push_back(ToCommon(message));
  }
  SchemaCost cost;
  for (const ChatTool& tool : request.tools) {
    if (tool.name.size() > kToolNameMax)
      return absl::InvalidArgumentError(
          absl::StrCat("a tool's name has ", tool.name.size(), " bytes, more than ", kToolNameMax));
    if (!tool.parameters.empty())
      if (absl::Status status =
              CheckSchemaSize(tool.parameters, absl::StrCat("the schema of tool \"", tool.name, "\""), cost);
          !status.ok())
        return status;
    inputs.tools.push_back({tool.name, tool.description, tool.parameters.empty() ? "{}" : tool.parameters});
  }
  inputs.tool_choice = ToCommon(request.tool_choice);
  inputs.parallel_tool_calls = request.parallel_tool_calls && parallel_tool_calls;
  inputs.json_schema = request.json_schema;
  inputs.reasoning_format = COMMON_REASONING_FORMAT_DEEPSEEK;
  inputs.enable_thinking = thinks;
  for (const auto& [name, json] : request.template_kwargs) {
    if (absl::Status status = CheckJsonDepth(json, kJsonDepthMax, absl::StrCat("chat_template_kwargs.", name));
        !status.ok())
      return status;
    inputs.chat_template_kwargs[name] = json;
    if (name != "enable_thinking") continue;
    if (json != "true" && json != "false")
      return absl::InvalidArgumentError("chat_template_kwargs.enable_thinking must be true or false");
    inputs.enable_thinking = json == "true";
  }
  if (absl::Status status = ContinueLastMessage(request.messages, inputs); !status.ok()) return status;
  return inputs;
}

absl::StatusOr<std::shared_ptr<const Grammar>> ChatTemplate::Impl::GrammarOf(
    const common_chat_params& params, const std::vector<TokenId>& written_tokens) const {
  if (params.grammar.empty()) return nullptr;
  std::vector<GrammarTrigger> triggers;
  for (const common_grammar_trigger& trigger : params.grammar_triggers) {
    GrammarTrigger& to = triggers.emplace_back();
    to.value = trigger.value;
    switch (trigger.type) {
      case COMMON_GRAMMAR_TRIGGER_TYPE_TOKEN:
        to.kind = GrammarTrigger::Kind::kToken;
        to.token = TokenId(trigger.token);
        break;
      case COMMON_GRAMMAR_TRIGGER_TYPE_WORD:
        to.kind = GrammarTrigger::Kind::kWord;
        if (const auto token = SpecialToken(trigger.value)) {
          to.kind = GrammarTrigger::Kind::kToken;
          to.token = *token;
        }
        break;
      case COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN:
        to.kind = GrammarTrigger::Kind::kPattern;
        break;
      case COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN_FULL:
        to.kind = GrammarTrigger::Kind::kPatternFull;
        break;
    }
  }
  return Grammar::FromGbnf(*tokenizer, params.grammar,
                           {.lazy = params.grammar_lazy,
                            .triggers = std::move(triggers),
                            .begun = params.grammar_lazy ? "" : params.generation_prompt,
                            .written_tokens = written_tokens});
}

absl::StatusOr<std::shared_ptr<const ReplyFormat>> ChatTemplate::Impl::FormatOf(
    const common_chat_params& params, const common_chat_templates_inputs& inputs) const {
  auto format = std::make_shared<ReplyFormat>();
  format->parser = common_chat_parser_params(params);
  format->parser.reasoning_format = inputs.reasoning_format;
  format->parser.parse_tool_calls = !inputs.tools.empty() && inputs.tool_choice != COMMON_CHAT_TOOL_CHOICE_NONE;
  format->parser.is_continuation = inputs.continue_final_message != COMMON_CHAT_CONTINUATION_NONE;
  try {
    if (!params.parser.empty()) format->parser.parser.load(params.parser);
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("the template's reply parser cannot be read: ", error.what()));
  }
  format->plain =
      params.parser.empty() || (inputs.tools.empty() && inputs.json_schema.empty() && !params.supports_thinking &&
                                !format->parser.is_continuation && IsPlain(format->parser));
  return format;
}

ChatTemplate::ChatTemplate() : impl_(std::make_unique<Impl>()) {}
ChatTemplate::~ChatTemplate() = default;

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Load(const Tokenizer& tokenizer,
                                                                 std::string_view override_text) {
  RouteLibraryLog();
  std::string text(override_text);
  if (text.empty()) {
    const char* own = llama_model_chat_template(tokenizer.model(), /*name=*/nullptr);
    if (own == nullptr) {
      return absl::FailedPreconditionError(
          "this model has no chat template (tokenizer.chat_template); it is likely a base model: use /v1/completions, "
          "or give a template with --chat-template");
    }
    text = own;
  }
  std::unique_ptr<ChatTemplate> result(new ChatTemplate);
  Impl& impl = *result->impl_;
  impl.tokenizer = &tokenizer;
  try {
    common_chat_template(text, "", "");  // for its message: the next call loses it
    impl.templates = common_chat_templates_init(tokenizer.model(), std::string(override_text));
    impl.parallel_tool_calls = common_chat_templates_get_caps(impl.templates.get())["supports_parallel_tool_calls"];
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("the chat template cannot be parsed: ", error.what()));
  }
  impl.shows_schema = text.find("response_format") != std::string::npos;
  try {
    impl.thinks = common_chat_templates_support_enable_thinking(impl.templates.get());
  } catch (const std::exception&) {
    impl.thinks = false;  // a template that refuses the probe, a lone "test" of a user, has no such switch
  }
  return result;
}

absl::StatusOr<common_chat_params> ChatTemplate::Impl::Apply(const common_chat_templates_inputs& inputs) const {
  try {
    const std::lock_guard lock(mutex);
    return common_chat_templates_apply(templates.get(), inputs);
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("the chat template refused the messages: ", error.what()));
  }
}

absl::StatusOr<ChatPrompt> ChatTemplate::Prompt(const ChatRequest& request) const {
  absl::StatusOr<common_chat_templates_inputs> inputs = impl_->Inputs(request);
  if (!inputs.ok()) return inputs.status();
  LoweredSchema schema;
  const std::string schema_text = request.json_schema == "{}" ? kAnyObject : request.json_schema;
  if (!schema_text.empty()) {
    absl::StatusOr<LoweredSchema> lowered = LowerJsonSchema(schema_text);
    if (!lowered.ok()) return lowered.status();
    schema = *std::move(lowered);
    inputs->json_schema = schema.json;
  }
  absl::StatusOr<common_chat_params> params = impl_->Apply(*inputs);
  if (!params.ok()) return params.status();
  if (!schema_text.empty() && impl_->shows_schema) {
    // To the model as it was given.
    inputs->json_schema = schema_text;
    absl::StatusOr<common_chat_params> as_given = impl_->Apply(*inputs);
    if (!as_given.ok()) return as_given.status();
    params->prompt = std::move(as_given->prompt);
  }
  ChatPrompt prompt{.text = std::move(params->prompt), .stop = std::move(params->additional_stops)};
  for (const std::string& text : params->preserved_tokens) {
    if (const auto token = impl_->SpecialToken(text)) prompt.written_tokens.push_back(*token);
  }
  // Without reasoning and tools the reply is the JSON and nothing else; llama.cpp's grammar would let it stand in a
  // fence, which the reader takes away: tokens that nobody sees, and stop strings that end a reply of nothing.
  const bool json_alone = !schema_text.empty() && request.tools.empty() && !params->supports_thinking &&
                          inputs->continue_final_message == COMMON_CHAT_CONTINUATION_NONE;
  if (json_alone) {
    auto grammar = Grammar::FromJsonSchema(*impl_->tokenizer, schema_text);
    if (!grammar.ok()) return grammar.status();
    prompt.grammar = *std::move(grammar);
    return prompt;  // without a format: all of the reply is content
  }

  params->grammar = schema.Complete(std::move(params->grammar));
  if (request.tool_choice == ToolChoice::kRequired && request.json_schema.empty())
    params->grammar = WithCallAtOnce(std::move(params->grammar));
  auto grammar = impl_->GrammarOf(*params, prompt.written_tokens);
  if (grammar.ok() && *grammar == nullptr && !schema_text.empty())
    grammar = Grammar::FromJsonSchema(*impl_->tokenizer, schema_text);  // a template that knows of no schemas
  if (!grammar.ok()) return grammar.status();
  prompt.grammar = *std::move(grammar);
  if (prompt.grammar == nullptr && request.tool_choice == ToolChoice::kRequired && !request.tools.empty())
    return absl::InvalidArgumentError(
        "tool_choice: this model's chat template has no tool calls; leave tool_choice at \"auto\", or start with "
        "another --chat-template");
  auto format = impl_->FormatOf(*params, *inputs);
  if (!format.ok()) return format.status();
  prompt.format = *std::move(format);
  return prompt;
}

}  // namespace reprise
