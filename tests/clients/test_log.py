"""What the log tells, and what it does not."""

import json
import time

import httpx

import servers

SECRET = "my cat is called Xanthippe"


def lines_after(server, **body):
  before = len(server.log)
  reply = httpx.post(f"{server.url}/v1/chat/completions", timeout=60, json={
      "messages": [{"role": "user", "content": SECRET}], "max_tokens": 4} | body)
  for _ in range(100):
    if any(reply.json().get("id", "-") in line for line in server.log[before:]):
      break
    time.sleep(0.02)
  return reply, server.log[before:]


def test_a_line_for_a_request_without_its_text(smollm):
  reply, lines = lines_after(smollm)
  line = next(line for line in lines if reply.json()["id"] in line)
  for part in ("in=", "reused=", "computed=", "out=4", "end=length"):
    assert part in line
  assert "Xanthippe" not in "".join(smollm.log)


def test_json_lines_and_prompts_where_they_are_asked_for():
  with servers.Server(servers.SMOLLM, "--context", "1024", "--log-json", "--log-prompts") as server:
    reply, lines = lines_after(server)
    objects = [json.loads(line) for line in lines]
    assert any(reply.json()["id"] in json.dumps(line) for line in objects)
    assert "Xanthippe" in json.dumps(objects)


def test_the_level_silences():
  with servers.Server(servers.SMOLLM, "--context", "1024", "--log-level", "error") as server:
    before = len(server.log)
    reply = httpx.post(f"{server.url}/v1/completions", json={"prompt": "a", "max_tokens": 1}, timeout=60)
    time.sleep(0.2)
    assert reply.status_code == 200 and server.log[before:] == []
