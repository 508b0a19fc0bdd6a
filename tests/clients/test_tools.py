"""Function calls through the openai package, whole and streamed, on a model that was trained for them."""

import json

import jsonschema
import openai
import pytest

WEATHER = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 40}, "unit": {"enum": ["C", "F"]}},
           "required": ["city", "unit"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather in a city now.", "parameters": WEATHER}},
         {"type": "function", "function": {"name": "clock", "description": "The time of day.", "parameters":
             {"type": "object", "properties": {}, "additionalProperties": False}}}]
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]


def ask(client, server, **parameters):
  return client.chat.completions.create(**({"model": server.model, "messages": QUESTION, "tools": TOOLS, "max_tokens": 128,
                                            "temperature": 0} | parameters))


def check_call(call):
  assert call.type == "function" and call.id
  if call.function.name == "weather":
    jsonschema.validate(json.loads(call.function.arguments), WEATHER)


@pytest.mark.parametrize("temperature", [0, 1])
def test_required_calls_a_function_with_valid_arguments(tool_client, qwen, temperature):
  for seed in range(4):
    reply = ask(tool_client, qwen, tool_choice="required", temperature=temperature, seed=seed)
    assert reply.choices[0].finish_reason == "tool_calls"
    for call in reply.choices[0].message.tool_calls:
      check_call(call)


def test_a_named_function_is_the_one_called(tool_client, qwen):
  reply = ask(tool_client, qwen, tool_choice={"type": "function", "function": {"name": "clock"}})
  assert [call.function.name for call in reply.choices[0].message.tool_calls] == ["clock"]


def test_none_calls_nothing(tool_client, qwen):
  reply = ask(tool_client, qwen, tool_choice="none")
  assert not reply.choices[0].message.tool_calls and reply.choices[0].finish_reason in ("stop", "length")


def test_the_deltas_of_a_call_add_up(tool_client, qwen):
  whole = ask(tool_client, qwen, tool_choice="required").choices[0].message.tool_calls
  calls, end, usage = {}, None, None
  for chunk in ask(tool_client, qwen, tool_choice="required", stream=True, stream_options={"include_usage": True}):
    usage = chunk.usage or usage
    for choice in chunk.choices:
      end = choice.finish_reason or end
      for delta in choice.delta.tool_calls or []:
        call = calls.setdefault(delta.index, {"id": delta.id, "name": delta.function.name, "arguments": ""})
        call["arguments"] += delta.function.arguments or ""
  assert end == "tool_calls" and usage.completion_tokens > 0
  assert [(call["name"], call["arguments"]) for call in calls.values()] == [
      (call.function.name, call.function.arguments) for call in whole]
  assert all(call["id"] for call in calls.values())


def test_a_result_is_read(tool_client, qwen):
  call = ask(tool_client, qwen, tool_choice="required").choices[0].message.tool_calls[0]
  messages = QUESTION + [{"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
                         {"role": "tool", "tool_call_id": call.id, "content": '{"celsius": 18, "sky": "cloudy"}'}]
  reply = ask(tool_client, qwen, messages=messages, tool_choice="none")
  assert "18" in reply.choices[0].message.content or "cloud" in reply.choices[0].message.content


def test_a_function_that_is_not_there_cannot_be_chosen(tool_client, qwen):
  with pytest.raises(openai.BadRequestError) as error:
    ask(tool_client, qwen, tool_choice={"type": "function", "function": {"name": "sing"}})
  assert error.value.body["param"].startswith("tool_choice")


def test_a_call_that_a_stop_string_cuts_is_none_to_carry_out(tool_client, qwen):
  reply = ask(tool_client, qwen, tool_choice="required", stop=["city"])
  assert reply.choices[0].finish_reason == "stop"


def test_a_function_needs_no_parameters(tool_client, qwen):
  reply = ask(tool_client, qwen, tool_choice="required", tools=[{"type": "function", "function": {"name": "now"}}])
  assert [call.function.name for call in reply.choices[0].message.tool_calls] == ["now"]
