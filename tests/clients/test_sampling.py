"""n, penalties, biases and seeds through the openai package."""

import concurrent.futures

import openai
import pytest

from test_chat import ask, streamed


def test_n_gives_so_many_choices(client):
  reply = ask(client, n=3, temperature=1.2, seed=4)
  assert [choice.index for choice in reply.choices] == [0, 1, 2]
  texts = [choice.message.content for choice in reply.choices]
  assert len(set(texts)) > 1, "choices differ"
  streams, ends, usage = streamed(client, n=3, temperature=1.2, seed=4)
  assert [streams[i] for i in range(3)] == texts and all(ends.values())
  assert usage.completion_tokens == reply.usage.completion_tokens == 3 * 24


def test_the_first_of_n_is_the_one_alone(client):
  alone = ask(client, temperature=1.2, seed=4).choices[0].message.content
  assert ask(client, n=2, temperature=1.2, seed=4).choices[0].message.content == alone


def test_a_bias_forces_and_bans(client, http):
  token = http.post("/tokenize", json={"content": " river", "add_special": False}).json()["tokens"][0]
  forced = ask(client, logit_bias={str(token): 100}, max_tokens=4)
  assert forced.choices[0].message.content == " river" * 4
  first = http.post("/tokenize", json={"content": ask(client, max_tokens=1).choices[0].message.content,
                                       "add_special": False}).json()["tokens"][0]
  banned = ask(client, logit_bias={str(first): -100}, max_tokens=1).choices[0].message.content
  assert banned != ask(client, max_tokens=1).choices[0].message.content


def test_penalties_make_repetition_rare(client):
  def distinct(**penalty):
    reply = client.completions.create(model="small", prompt="la la la la la la la", max_tokens=48, temperature=0, **penalty)
    words = reply.choices[0].text.split()
    return len(set(words)) / max(len(words), 1)
  assert distinct(frequency_penalty=2, presence_penalty=2) > distinct()


def test_a_seed_holds_while_others_are_served(client):
  alone = ask(client, temperature=1.0, seed=11, max_tokens=48).choices[0].message.content
  with concurrent.futures.ThreadPoolExecutor(6) as pool:
    others = [pool.submit(ask, client, temperature=1.0, seed=100 + i, max_tokens=48) for i in range(5)]
    beside = ask(client, temperature=1.0, seed=11, max_tokens=48).choices[0].message.content
    for other in others:
      other.result()
  assert beside == alone


def test_text_goes_back_and_forth_through_tokens(http):
  text = "Zürich, 東京 🙂 <|im_end|>"
  tokens = http.post("/tokenize", json={"content": text, "add_special": False, "parse_special": False}).json()["tokens"]
  assert http.post("/detokenize", json={"tokens": tokens}).json()["content"] == text


def test_usage_is_counted_in_every_end(client):
  text = ask(client).choices[0].message.content
  stopped = ask(client, stop=[text[8:13]])
  assert stopped.choices[0].finish_reason == "stop" and 0 < stopped.usage.completion_tokens < 24
  assert ask(client).usage.completion_tokens == 24
  with ask(client, stream=True, max_tokens=1500) as stream:  # given up by the client
    next(iter(stream))
  assert ask(client, max_tokens=1).usage.completion_tokens == 1


def test_a_truncated_prompt_is_reported(http):
  messages = [{"role": "system", "content": "You are brief."}]
  for turn in range(30):
    messages += [{"role": "user", "content": f"{turn}: " + "word " * 100}, {"role": "assistant", "content": "Yes."}]
  messages.append({"role": "user", "content": "And now?"})
  asked = {"messages": messages, "max_tokens": 8}
  assert http.post("/v1/chat/completions", json=asked).json()["error"]["code"] == "context_too_long", "control"
  reply = http.post("/v1/chat/completions", json=asked | {"truncation": {"type": "middle", "keep_system": True}})
  assert reply.status_code == 200, reply.text
  truncation = reply.json()["truncation"]
  assert truncation["dropped_messages"] > 0 and truncation["prompt_tokens_before"] > 2048
  assert reply.json()["usage"]["prompt_tokens"] <= 2048


@pytest.mark.parametrize("bias", [{"x": 1}, {"0": 101}, {"99999999": 1}])
def test_a_wrong_bias_is_refused(client, bias):
  with pytest.raises(openai.BadRequestError) as error:
    ask(client, logit_bias=bias)
  assert error.value.body["param"].startswith("logit_bias")
