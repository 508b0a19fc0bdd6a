"""Receipts, explain, statistics and purge, against a running server with two API keys."""

import json
import subprocess
import time

import httpx
import pytest

import servers

ALICE, BOB = "sk-test-alice", "sk-test-bob"
# A template that writes the time, to the second, before everything.
CLOCK = """{{ '<|im_start|>note\nIt is ' + strftime_now('%Y-%m-%d %H:%M:%S') + '.<|im_end|>\n' }}\
{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}\
{% endfor %}{{ '<|im_start|>assistant\n' }}"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
  keys = tmp_path_factory.mktemp("keys") / "keys"
  keys.write_text(f"{ALICE}\n{BOB}\n")
  keys.chmod(0o600)
  with servers.Server(servers.SMOLLM, "--context", "2048", "--api-key-file", str(keys)) as running:
    yield running


@pytest.fixture
def fresh(server):
  """The server without anything cached."""
  for key in (ALICE, BOB):
    post(server, "/v1/cache/purge", {}, key)
  return server


def post(server, path, body, key=ALICE):
  reply = httpx.post(f"{server.url}{path}", json=body, timeout=120, headers={"Authorization": f"Bearer {key}"})
  assert reply.status_code == 200, reply.text
  return reply.json()


def stats(server):
  return httpx.get(f"{server.url}/v1/cache/stats", headers={"Authorization": f"Bearer {ALICE}"}).json()


def chat(*texts, **fields):
  """A body: the system's text, then user and assistant in turns."""
  roles = ["system"] + ["user", "assistant"] * len(texts)
  return {"messages": [{"role": role, "content": text} for role, text in zip(roles, texts)], "max_tokens": 2,
          "temperature": 0} | fields


def ask(server, body, key=ALICE):
  path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
  with_receipt = body | {"cache": body.get("cache", {}) | {"receipt": True}}
  return post(server, path, with_receipt, key)["prefix_cache_receipt"]


def explain(server, body, key=ALICE):
  return post(server, "/v1/cache/explain", body, key)["prefix_cache_receipt"]


def reason(receipt):
  assert len(receipt["miss"]) == 1
  return receipt["miss"][0]["reason"]


RIVERS = chat("You know rivers well and answer in one short sentence.", "Which river is the longest one on earth?")


def test_cold_then_warm(fresh):
  cold = ask(fresh, RIVERS)
  assert (reason(cold), cold["decision"], cold["hit"]["reusable_tokens"]) == ("never_seen", "recompute", 0)
  warm = ask(fresh, RIVERS)
  assert (reason(warm), warm["decision"]) == ("last_token_rule", "safe_reuse")
  assert warm["hit"] == {"reusable_tokens": cold["hit"]["suffix_tokens"] - 1, "prefill_skipped": True, "suffix_tokens": 1,
                         "by_tier": {"pool": cold["hit"]["suffix_tokens"] - 1, "ram": 0, "disk": 0, "redis": 0}}
  assert warm["compatibility"] == cold["compatibility"] and warm["key"].startswith("sha256:")


def test_a_stream_and_many_choices_have_one_receipt(fresh):
  body = RIVERS | {"stream": True, "n": 2, "cache": {"receipt": True}}
  receipts = []
  with httpx.stream("POST", f"{fresh.url}/v1/chat/completions", json=body, timeout=120,
                    headers={"Authorization": f"Bearer {ALICE}"}) as reply:
    for line in reply.iter_lines():
      if line.startswith("data: {"):
        receipts.append(json.loads(line[6:]).get("prefix_cache_receipt"))
  assert [receipt is not None for receipt in receipts] == [False] * (len(receipts) - 1) + [True]
  assert reason(receipts[-1]) == "never_seen"  # of the first choice: the second one reuses its prompt


def test_tokens_that_differ_come_with_their_texts(fresh):
  prompt = "The river that flows through Paris is the "
  ask(fresh, {"prompt": prompt + "Seine, of course", "max_tokens": 1})
  receipt = ask(fresh, {"prompt": prompt + "Danube, of course", "max_tokens": 1})
  assert reason(receipt) == "tokens_differ"
  miss = receipt["miss"][0]
  tokens = httpx.post(f"{fresh.url}/tokenize", json={"content": prompt + "Danube, of course"},
                      headers={"Authorization": f"Bearer {ALICE}"}).json()["tokens"]
  assert miss["detail"].startswith(f"position {miss['at_token']}: asked {tokens[miss['at_token']]} \"")
  assert ', cached ' in miss["detail"]
  fork = explain(fresh, {"prompt": prompt + "Volga, of course", "max_tokens": 1})["fork"]
  assert fork["before"] + fork["after"] in prompt + "Volga, of course" and fork["after"].startswith(fork["asked"]["text"])
  assert fork["lost_tokens"] > 0 and "message" not in fork


def test_another_salt_is_named_to_its_owner(fresh):
  ask(fresh, RIVERS | {"cache": {"salt": "a"}})
  assert reason(ask(fresh, RIVERS | {"cache": {"salt": "b"}})) == "salt_differs"
  assert reason(explain(fresh, RIVERS)) == "salt_differs"
  assert reason(explain(fresh, RIVERS | {"cache": {"salt": "a"}})) == "last_token_rule"  # the control


def test_what_another_key_asked_was_never_seen(fresh):
  ask(fresh, RIVERS)
  for receipt in (explain(fresh, RIVERS, BOB), ask(fresh, RIVERS, BOB)):
    assert reason(receipt) == "never_seen" and receipt["hit"]["reusable_tokens"] == 0
  assert explain(fresh, chat("You know rivers", "x"), BOB)["fork"]["cached"] is not None  # of Bob's own, now
  post(fresh, "/v1/cache/purge", {}, BOB)
  receipt = explain(fresh, RIVERS, BOB)
  assert receipt["fork"]["cached"] is None and receipt["fork"]["lost_tokens"] == 0
  assert reason(explain(fresh, RIVERS)) == "last_token_rule"  # the control
  scopes = {explain(fresh, RIVERS, key)["compatibility"]["tenant_scope"] for key in (ALICE, BOB)}
  assert len(scopes) == 2 and not any(ALICE in scope or BOB in scope for scope in scopes)


def test_explain_tells_what_the_request_will_find(fresh):
  ask(fresh, RIVERS)
  for body in (RIVERS, chat("You know rivers well and answer never.", "Why?"), chat("Something else.", "Why?"),
               {"prompt": "Something else"}, RIVERS | {"cache": {"read": False}}, RIVERS | {"cache": {"salt": "s"}}):
    told, found = explain(fresh, body), ask(fresh, body)
    for field in ("key", "hit", "miss", "decision", "compatibility"):
      assert told[field] == found[field]
    assert told["prompt_tokens"] == found["hit"]["reusable_tokens"] + found["hit"]["suffix_tokens"]


def test_explain_changes_nothing(fresh):
  ask(fresh, RIVERS)
  before = stats(fresh)
  new = chat("Something quite different.", "What is it?")
  first = explain(fresh, new)
  for _ in range(3):
    assert explain(fresh, new) | {"id": ""} == first | {"id": ""}
  assert stats(fresh) == before
  ask(fresh, new)
  assert stats(fresh) != before  # the control


def test_a_time_stamp_in_the_system_prompt_is_found(fresh):
  first, second = (chat(f"You are brief. It is 12:0{minute} now. You know rivers, lakes and seas.", "Name one.")
                   for minute in (1, 2))
  ask(fresh, first)
  fork = explain(fresh, second)["fork"]
  assert fork["message"] == {"index": 0, "role": "system", "part": "text", "offset": len("You are brief. It is 12:0")}
  assert (fork["asked"]["text"], fork["cached"]["text"], fork["old_text"]) == ("2", "1", True)
  assert "message 0 (system) differs" in fork["summary"] and "date or time" in fork["advice"]
  assert explain(fresh, first)["fork"] is None  # the control


def test_a_reply_that_comes_back_changed_is_found(fresh):
  talk = ["Be brief.", "Capital of France?", "<think>Easy, that is known.</think>Paris.", "And of Italy?"]
  ask(fresh, chat(*talk))
  fork = explain(fresh, chat(*talk[:2], "Paris.", talk[3]))["fork"]
  assert (fork["message"]["index"], fork["message"]["role"], fork["message"]["offset"]) == (2, "assistant", 0)
  assert fork["old_text"] and "reasoning_content" in fork["advice"]
  fork = explain(fresh, chat(*talk[:3], "And of Spain?"))["fork"]
  assert fork["message"]["index"] == 3 and not fork["old_text"]  # the control: another question


def test_a_template_that_tells_the_time_is_found(tmp_path):
  template = tmp_path / "clock.jinja"
  template.write_text(CLOCK)
  with servers.Server(servers.SMOLLM, "--context", "1024", "--chat-template", str(template)) as clock:
    body = chat("Be brief.", "Name a river.")
    ask(clock, body)
    time.sleep(1.1)
    receipt = explain(clock, body)
    assert reason(receipt) == "tokens_differ"
    fork = receipt["fork"]
    assert (fork["message"]["index"], fork["message"]["part"], fork["old_text"]) == (0, "template", True)
    assert "date or time" in fork["advice"]


def test_tools_in_another_order_are_found(qwen):
  tools = [{"type": "function", "function": {"name": name, "description": f"Tells the {name} of a place.",
                                             "parameters": {"type": "object", "properties": {}}}}
           for name in ("weather", "population", "elevation")]
  body = chat("Be brief.", "How many people live in Rome?")
  post(qwen, "/v1/chat/completions", body | {"tools": tools})
  fork = explain(qwen, body | {"tools": tools[:1] + tools[:0:-1]})["fork"]
  assert fork["message"]["part"] == "tools" and fork["message"]["tool"] == "elevation" and fork["old_text"]
  assert explain(qwen, body | {"tools": tools})["fork"] is None  # the control


def test_purge_forgets_ones_own(fresh):
  for key in (ALICE, BOB):
    ask(fresh, RIVERS, key)
  assert post(fresh, "/v1/cache/purge", {})["purged"]["blocks"] > 0
  assert reason(explain(fresh, RIVERS)) == "never_seen"
  assert reason(explain(fresh, RIVERS, BOB)) == "last_token_rule"  # the control
  assert post(fresh, "/v1/cache/purge", {})["purged"] == {"blocks": 0, "pinned": 0}


def test_statistics_add_up(fresh):
  before = stats(fresh)
  receipts = [ask(fresh, RIVERS) for _ in range(3)]
  after = stats(fresh)
  for field, counted in (("pool", "reusable_tokens"), ("computed", "suffix_tokens")):
    assert after["kv_tokens_total"][field] - before["kv_tokens_total"][field] == sum(r["hit"][counted] for r in receipts)
  for name, count in (("never_seen", 1), ("last_token_rule", 2)):
    assert after["kv_miss_total"][name] - before["kv_miss_total"][name] == count
  pool = after["pool_bytes"]
  assert sum(pool.values()) == sum(group["slots"] * group["slot_bytes"] for group in after["groups"])
  assert pool["reusable"] > 0 and pool["active"] == 0
  assert any("miss=last_token_rule" in line for line in fresh.log)


def reprise(*arguments, stdin="", key=ALICE):
  return subprocess.run([servers.REPRISE, "cache", *arguments], input=stdin, capture_output=True, text=True, timeout=60,
                        env={"OPENAI_API_KEY": key}, check=False)


def test_at_the_command_line(fresh, tmp_path):
  file = tmp_path / "body.json"
  file.write_text(json.dumps(chat("You are brief. It is 12:02 now.", "Name a river.")))
  ask(fresh, chat("You are brief. It is 12:01 now.", "Name a river."))
  told = reprise("explain", str(file), "--url", fresh.url)
  assert told.returncode == 0, told.stderr
  for part in ("reused      ", 'asked 34 "2", cached 33 "1"', "message 0 (system) differs", "date or time"):
    assert part in told.stdout
  piped = reprise("explain", "-", "--url", fresh.url + "/v1", stdin=file.read_text())
  assert piped.stdout == told.stdout
  answer = json.loads(reprise("explain", str(file), "--json", "--url", fresh.url).stdout)
  assert answer["prefix_cache_receipt"]["fork"]["message"]["index"] == 0
  assert "prompt tokens were not computed" in reprise("stat", "--url", fresh.url).stdout
  assert json.loads(reprise("stat", "--json", "--url", fresh.url).stdout)["nodes"] >= 0
  assert reprise("purge", "--url", fresh.url).stdout.startswith("forgot ")


def test_at_the_command_line_with_mistakes(server, tmp_path):
  bad, wrong = tmp_path / "bad.json", tmp_path / "wrong.json"
  bad.write_text("{")
  wrong.write_text('{"prompt": "a", "temperture": 1}')
  for status, message, done in (
      (1, "no answer", reprise("stat", "--url", "http://127.0.0.1:9")),
      (1, "OPENAI_API_KEY", reprise("stat", "--url", server.url, key="sk-test-nobody")),
      (1, "`temperature`", reprise("explain", str(wrong), "--url", server.url)),
      (1, "No such file", reprise("explain", str(tmp_path / "none.json"), "--url", server.url)),
      (2, "not JSON", reprise("explain", str(bad), "--url", server.url)),
      (2, "`reprise cache explain`", reprise("explian", "x")),
      (2, "stat|list|verify|gc|explain|purge", reprise())):
    assert done.returncode == status and message in done.stderr and done.stdout == "", done
