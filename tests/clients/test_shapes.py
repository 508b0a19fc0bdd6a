"""Every kind of reply against the types that the openai package is generated with from the public API description."""

import json

import httpx
import jsonschema
import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

HELLO = [{"role": "user", "content": "Name three rivers."}]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {
    "type": "object", "properties": {"at": {"enum": ["sky", "sea"]}}, "required": ["at"]}}}]
CHAT_REQUESTS = [
    {},
    {"n": 2, "temperature": 1},
    {"logprobs": True, "top_logprobs": 2},
    {"stop": ["a"]},
    {"response_format": {"type": "json_object"}},
]
CALL = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 64}


def conforms(value, kind):
  """By the type's JSON schema, which is stricter than the package itself: it takes anything it can hold."""
  jsonschema.validate(value, kind.model_json_schema())
  kind.model_validate(value)


def post(http, path, **body):
  reply = http.post(path, json={"messages" if path == CHAT else "prompt": HELLO if path == CHAT else "One, two,",
                                "max_tokens": 8, "temperature": 0} | body)
  assert reply.status_code == 200, reply.text
  return reply


def chunks(http, path, **body):
  lines = post(http, path, stream=True, stream_options={"include_usage": True}, **body).text.split("\n\n")
  events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
  assert events[-1] == "[DONE]"
  return [json.loads(event) for event in events[:-1]]


@pytest.mark.parametrize("request_body", CHAT_REQUESTS)
def test_chat_replies(http, request_body):
  conforms(post(http, CHAT, **request_body).json(), ChatCompletion)


@pytest.mark.parametrize("request_body", CHAT_REQUESTS)
def test_chat_chunks(http, request_body):
  events = chunks(http, CHAT, **request_body)
  for event in events:
    conforms(event, ChatCompletionChunk)
  assert events[0]["choices"][0]["delta"]["role"] == "assistant"
  assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] > 0
  assert len({event["id"] for event in events}) == 1


def test_tool_calls(qwen):
  with httpx.Client(base_url=qwen.url, timeout=120) as http:
    conforms(post(http, CHAT, **CALL).json(), ChatCompletion)
    for event in chunks(http, CHAT, **CALL):
      conforms(event, ChatCompletionChunk)


@pytest.mark.parametrize("request_body", [{}, {"logprobs": 2}, {"echo": True}, {"n": 2, "temperature": 1}])
def test_text_replies_and_chunks(http, request_body):
  conforms(post(http, TEXT, **request_body).json(), Completion)
  for event in chunks(http, TEXT, **request_body):
    for choice in event["choices"]:  # the description has no type of its own for chunks of text
      choice["finish_reason"] = choice["finish_reason"] or "stop"
    conforms(event, Completion)


def test_models(http):
  listed = http.get("/v1/models").json()
  assert listed["object"] == "list"
  for model in listed["data"]:
    conforms(model, Model)
