"""Chat through the openai package: every parameter, whole and streamed."""

import math

import openai
import pytest

QUESTION = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Name three rivers."}]


def ask(client, **parameters):
  return client.chat.completions.create(
      **({"model": "small", "messages": QUESTION, "max_tokens": 24, "temperature": 0} | parameters))


def streamed(client, **parameters):
  """(text by choice, finish reason by choice, usage)."""
  texts, ends, usage = {}, {}, None
  for chunk in ask(client, stream=True, stream_options={"include_usage": True}, **parameters):
    usage = chunk.usage or usage
    for choice in chunk.choices:
      texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
      ends[choice.index] = choice.finish_reason or ends.get(choice.index)
  return texts, ends, usage


def test_a_reply_has_openais_shape(client):
  reply = ask(client)
  assert reply.object == "chat.completion" and reply.id.startswith("chatcmpl-")
  assert reply.choices[0].message.role == "assistant"
  assert reply.choices[0].message.content.strip()
  assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
  assert reply.usage.completion_tokens == 24 and reply.choices[0].finish_reason == "length"


def test_the_deltas_add_up_to_the_whole_reply(client):
  whole = ask(client)
  texts, ends, usage = streamed(client)
  assert texts == {0: whole.choices[0].message.content}
  assert ends == {0: "length"}
  assert usage.completion_tokens == whole.usage.completion_tokens
  assert usage.prompt_tokens == whole.usage.prompt_tokens


def test_unicode_survives_in_both_directions(client):
  messages = [{"role": "user", "content": "Répète: «Zürich 東京 🙂»"}]
  whole = ask(client, messages=messages, temperature=1.0, seed=5, max_tokens=40)
  texts, _, _ = streamed(client, messages=messages, temperature=1.0, seed=5, max_tokens=40)
  assert texts[0] == whole.choices[0].message.content


def test_a_repeated_prompt_is_reused(client):
  messages = [{"role": "user", "content": "Once more: " + "the river runs to the sea. " * 40}]
  ask(client, messages=messages, max_tokens=1)
  again = ask(client, messages=messages, max_tokens=1)
  assert again.usage.prompt_tokens_details.cached_tokens > again.usage.prompt_tokens / 2


def test_a_stop_string_ends_the_reply_and_is_not_in_it(client):
  text = ask(client).choices[0].message.content
  stop = text[8:13]
  reply = ask(client, stop=[stop])
  assert reply.choices[0].finish_reason == "stop"
  assert reply.choices[0].message.content == text[:text.index(stop)]
  texts, ends, _ = streamed(client, stop=stop)
  assert texts[0] == text[:text.index(stop)] and ends[0] == "stop"


def test_log_probabilities_do_not_name_a_stop_string(client):
  text = ask(client).choices[0].message.content
  stop = text[8:20]
  shown = text[:text.index(stop)]
  reply = ask(client, stop=[stop], logprobs=True).choices[0]
  named = "".join(token.token for token in reply.logprobs.content)
  assert reply.message.content == shown and shown.startswith(named)
  streamed_names = ""
  for chunk in ask(client, stop=[stop], logprobs=True, stream=True):
    for choice in chunk.choices:
      streamed_names += "".join(token.token for token in choice.logprobs.content) if choice.logprobs else ""
  assert streamed_names == named


def test_the_same_seed_gives_the_same_text(client):
  first, second, other = (ask(client, temperature=1.2, seed=seed).choices[0].message.content for seed in (7, 7, 8))
  assert first == second
  assert first != other


def test_logprobs_are_probabilities_of_the_tokens(client):
  reply = ask(client, logprobs=True, top_logprobs=3, max_tokens=8)
  content = reply.choices[0].logprobs.content
  assert len(content) == reply.usage.completion_tokens
  assert b"".join(bytes(token.bytes) for token in content).decode() == reply.choices[0].message.content
  for token in content:
    assert len(token.top_logprobs) == 3
    values = [top.logprob for top in token.top_logprobs]
    assert values == sorted(values, reverse=True)
    assert math.exp(values[0]) <= 1.0001
    assert abs(token.logprob - values[0]) < 1e-6, "greedy takes the likeliest"


def test_models_are_listed_by_every_name(client, smollm):
  names = [model.id for model in client.models.list()]
  assert names == [smollm.model, "small", "gpt-4o-mini"]
  for name in names:
    assert ask(client, model=name, max_tokens=1).model == name


def test_text_parts_and_the_developer_role(client):
  messages = [{"role": "developer", "content": "You are brief."},
              {"role": "user", "content": [{"type": "text", "text": "Name three rivers."}]}]
  assert ask(client, messages=messages).choices[0].message.content == ask(client).choices[0].message.content


def test_a_too_long_prompt_has_both_numbers(client):
  with pytest.raises(openai.BadRequestError) as error:
    ask(client, messages=[{"role": "user", "content": "word " * 3000}])
  body = error.value.body
  assert body["code"] == "context_too_long" and body["limit"] == 2048 and body["got"] > 3000
