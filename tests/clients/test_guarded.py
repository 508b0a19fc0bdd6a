"""API keys, other origins, and a queue that is full."""

import concurrent.futures
import subprocess

import httpx
import openai
import pytest

import servers
from conftest import GOOD_KEY, client_of

HELLO = [{"role": "user", "content": "Hello"}]


def hello(server, key, **parameters):
  return client_of(server, key).chat.completions.create(
      **({"model": server.model, "messages": HELLO, "max_tokens": 2} | parameters))


def test_each_good_key_is_served(guarded):
  for key in (GOOD_KEY, "sk-test-second"):
    assert hello(guarded, key).choices


@pytest.mark.parametrize("key", ["wrong", GOOD_KEY + "x", GOOD_KEY[:-1], GOOD_KEY.upper(), "#"])
def test_a_wrong_key_is_not(guarded, key):
  with pytest.raises(openai.AuthenticationError) as error:
    hello(guarded, key)
  assert error.value.body["code"] == "unauthorized"
  assert GOOD_KEY not in str(error.value.body)


def test_health_needs_no_key_and_models_do(guarded):
  assert httpx.get(f"{guarded.url}/health").status_code == 200
  assert httpx.get(f"{guarded.url}/v1/models").status_code == 401


def test_a_page_of_the_allowed_origin_may_ask(guarded):
  ask = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST",
         "Access-Control-Request-Headers": "authorization, content-type"}
  allowed = httpx.options(f"{guarded.url}/v1/chat/completions", headers=ask)
  assert allowed.status_code in (200, 204)
  assert allowed.headers["access-control-allow-origin"] in ("https://app.example", "*")
  assert "POST" in allowed.headers["access-control-allow-methods"]
  assert "authorization" in allowed.headers["access-control-allow-headers"].lower()
  other = httpx.options(f"{guarded.url}/v1/chat/completions", headers=ask | {"Origin": "https://evil.example"})
  assert "access-control-allow-origin" not in other.headers
  reply = httpx.post(f"{guarded.url}/v1/chat/completions", json={"messages": HELLO, "max_tokens": 1},
                     headers={"Origin": "https://app.example", "Authorization": f"Bearer {GOOD_KEY}"})
  assert reply.headers["access-control-allow-origin"] == "https://app.example"


def test_a_full_queue_is_a_rate_limit_with_a_time_to_come_again(guarded):
  with concurrent.futures.ThreadPoolExecutor(12) as pool:
    calls = [pool.submit(hello, guarded, GOOD_KEY, max_tokens=300) for _ in range(12)]
    errors = [call.exception() for call in calls]
  refused = [error for error in errors if error]
  assert refused and len(refused) < 12
  for error in refused:
    assert isinstance(error, openai.RateLimitError) and error.body["code"] == "queue_full"
    assert int(error.response.headers["retry-after"]) > 0
  assert hello(guarded, GOOD_KEY).choices


def test_a_chat_without_a_key_says_where_to_put_it(guarded):
  def chat(**environment):
    return subprocess.run([servers.REPRISE, "chat", "--url", guarded.url, "--max-tokens", "2"], input="Hello\n", text=True,
                          capture_output=True, timeout=60, env={"PATH": "/usr/bin:/bin"} | environment, check=False)
  refused = chat()
  assert refused.returncode == 1 and "OPENAI_API_KEY" in refused.stderr
  assert chat(OPENAI_API_KEY=GOOD_KEY).returncode == 0


def test_keys_are_not_in_the_log(guarded):
  assert GOOD_KEY not in "".join(guarded.log)
