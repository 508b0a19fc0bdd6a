"""/v1/completions through the openai package, as editors' plugins use it."""

import math


def complete(client, **parameters):
  return client.completions.create(
      **({"model": "small", "prompt": "The capital of France is", "max_tokens": 12, "temperature": 0} | parameters))


def test_a_text_is_continued(client):
  reply = complete(client)
  assert reply.object == "text_completion"
  assert "Paris" in reply.choices[0].text


def test_streams_add_up(client):
  chunks = list(complete(client, stream=True))
  assert "".join(chunk.choices[0].text for chunk in chunks) == complete(client).choices[0].text
  assert chunks[-1].choices[0].finish_reason == "length"


def test_token_ids_are_a_prompt_too(client, http):
  tokens = http.post("/tokenize", json={"content": "The capital of France is"}).json()["tokens"]
  assert complete(client, prompt=tokens).choices[0].text == complete(client).choices[0].text


def test_text_logprobs_line_up(client):
  reply = complete(client, logprobs=4)
  logprobs = reply.choices[0].logprobs
  assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == 12
  assert "".join(logprobs.tokens) == reply.choices[0].text
  assert all(math.exp(value) <= 1.0001 for value in logprobs.token_logprobs)
  assert all(len(top) == 4 for top in logprobs.top_logprobs)
