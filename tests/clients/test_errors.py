"""Errors arrive as the exceptions that programs catch, with code, field and both numbers."""

import openai
import pytest

HELLO = [{"role": "user", "content": "Hello"}]


def body_of(expected, call):
  with pytest.raises(expected) as error:
    call()
  return error.value.body


def test_an_unknown_model_lists_the_known_ones(client):
  body = body_of(openai.NotFoundError, lambda: client.chat.completions.create(model="gpt-9", messages=HELLO))
  assert body["code"] == "model_not_found" and "small" in body["message"]


@pytest.mark.parametrize("field, value", [
    ("temperature", -1), ("top_p", 0), ("top_p", 1.5), ("max_tokens", 0), ("n", 0), ("n", 1000), ("stop", [""]),
    ("top_logprobs", 99), ("frequency_penalty", 9), ("messages", []),
])
def test_a_value_outside_its_range_names_the_field(client, field, value):
  parameters = {"model": "small", "messages": HELLO, "max_tokens": 1} | {field: value}
  if field == "top_logprobs":
    parameters["logprobs"] = True
  body = body_of(openai.BadRequestError, lambda: client.chat.completions.create(**parameters))
  assert body["param"].startswith(field) and field in body["message"]


def test_an_unknown_field_names_the_nearest(client):
  body = body_of(openai.BadRequestError, lambda: client.chat.completions.create(
      model="small", messages=HELLO, extra_body={"temprature": 1}))
  assert body["code"] == "unknown_field" and "`temperature`" in body["message"]


def test_what_is_no_json_is_said_to_be_none(http):
  reply = http.post("/v1/chat/completions", content=b'{"messages": [')
  assert reply.status_code == 400 and reply.json()["error"]["code"] == "invalid_json"


def test_an_unknown_address_is_404_in_the_same_shape(http):
  reply = http.get("/v1/nothing")
  assert reply.status_code == 404 and reply.json()["error"]["message"]


def test_the_server_goes_on(client):
  assert client.chat.completions.create(model="small", messages=HELLO, max_tokens=1).choices
