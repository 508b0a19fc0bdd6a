"""Replies that have to be JSON: always parsed, always valid, streamed or not, at any temperature."""

import json

import jsonschema
import openai
import pytest

RIVER = {"type": "object",
         "properties": {"name": {"type": "string", "maxLength": 30}, "length_km": {"type": "integer"},
                        "continent": {"enum": ["Africa", "Asia", "Europe"]},
                        "cities": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 3}},
         "required": ["name", "length_km", "continent", "cities"], "additionalProperties": False}
QUESTION = [{"role": "user", "content": "Describe a river as JSON."}]


def ask(client, **parameters):
  return client.chat.completions.create(**({"model": "small", "messages": QUESTION, "max_tokens": 200} | parameters))


def schema_format(schema):
  return {"type": "json_schema", "json_schema": {"name": "river", "schema": schema, "strict": True}}


def test_replies_follow_the_schema(client):
  ended = 0
  for seed in range(12):
    choice = ask(client, response_format=schema_format(RIVER), temperature=1, seed=seed).choices[0]
    if choice.finish_reason == "stop":
      jsonschema.validate(json.loads(choice.message.content), RIVER)
      ended += 1
  assert ended >= 6


def test_json_object_is_an_object(client):
  ended = 0
  for seed in range(8):
    choice = ask(client, response_format={"type": "json_object"}, temperature=1, seed=seed).choices[0]
    if choice.finish_reason == "stop":
      assert isinstance(json.loads(choice.message.content), dict)
      ended += 1
  assert ended > 0


def test_streams_add_up_to_the_same_json(client):
  common = {"response_format": schema_format(RIVER), "temperature": 0.8, "seed": 3}
  whole = ask(client, **common).choices[0].message.content
  parts = [chunk.choices[0].delta.content or "" for chunk in ask(client, stream=True, **common) if chunk.choices]
  assert "".join(parts) == whole


def test_the_parse_helper_returns_an_object(client):
  from pydantic import BaseModel

  class Answer(BaseModel):
    yes: bool

  reply = client.chat.completions.parse(model="small", messages=[{"role": "user", "content": "Is water wet? Answer as JSON."}],
                                        response_format=Answer, max_tokens=64, temperature=0)
  assert reply.choices[0].message.parsed.yes in (True, False)


@pytest.mark.parametrize("wrong", [{"type": "json_schema"}, {"type": "yaml"}, schema_format({"type": "riddle"}),
                                   schema_format(17)])
def test_a_format_that_cannot_be_is_refused(client, wrong):
  with pytest.raises(openai.BadRequestError) as error:
    ask(client, response_format=wrong)
  assert error.value.body["param"].startswith("response_format")
