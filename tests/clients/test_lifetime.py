"""Starts that cannot work, the banner, and how a server ends."""

import json
import re
import signal
import socket
import subprocess
import threading
import time

import httpx
import openai
import pytest

import servers
from conftest import client_of

STORY = [{"role": "user", "content": "Write a long story about a river."}]


def run(*arguments):
  return subprocess.run([servers.REPRISE, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                        timeout=60, check=False)


def start_story(server, tokens, events):
  """A thread that reads a stream of so many tokens into `events`, then its finish reason or the error."""
  def read():
    try:
      for chunk in client_of(server).chat.completions.create(model=server.model, messages=STORY, stream=True,
                                                             max_tokens=tokens, seed=1, extra_body={"ignore_eos": True}):
        events.append(chunk.choices[0].finish_reason or chunk.choices[0].delta.content)
    except (openai.APIError, httpx.HTTPError) as error:
      events.append(error)
  thread = threading.Thread(target=read)
  thread.start()
  while len(events) < 3:
    time.sleep(0.01)
  return thread


def test_sigterm_lets_a_reply_end_and_refuses_new_ones():
  with servers.Server(servers.SMOLLM, "--context", "2048") as server:
    events = []
    thread = start_story(server, 300, events)
    server.process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + 10
    refused = None
    while refused is None and time.monotonic() < deadline:
      try:
        reply = httpx.post(f"{server.url}/v1/chat/completions", json={"messages": STORY, "max_tokens": 1})
      except httpx.HTTPError:  # not listening any more
        break
      refused = reply if reply.status_code == 503 else None
    assert refused is not None and refused.json()["error"]["code"] == "shutting_down"
    thread.join(60)
    assert events[-1] == "length" and len(events) > 100
    assert server.process.wait(30) == 0


def test_the_drain_ends_at_its_deadline():
  with servers.Server(servers.SMOLLM, "--context", "2048", "--drain-timeout", "500ms") as server:
    events = []
    thread = start_story(server, 1900, events)
    begin = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - begin < 5
    thread.join(60)
    assert events[-1] != "length", "control: the reply would have gone on"


def test_a_second_signal_ends_at_once():
  with servers.Server(servers.SMOLLM, "--context", "2048") as server:
    thread = start_story(server, 1900, [])
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert server.process.poll() is None, "control: the first signal waits for the reply"
    begin = time.monotonic()
    assert server.stop(signal.SIGINT) != 0
    assert time.monotonic() - begin < 1
    thread.join(60)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_model_loads_ends_at_once(number):
  with subprocess.Popen([servers.REPRISE, "serve", str(servers.SMOLLM), "--port", "0", "--json"],
                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
    while process.stdout.readline() != "}\n":  # the end of the banner, which comes before the weights
      assert process.poll() is None
    process.send_signal(number)
    assert process.stdout.read() == "", "control: it was not serving yet"
    assert process.wait(10) == 128 + number


def test_the_dry_run_has_every_decision():
  text = run("serve", str(servers.SMOLLM), "--dry-run", "--port", "0")
  assert text.returncode == 0, text.stderr
  for word in ("model", "weights", "K and V", "arithmetic", "threads", "memory", "context", "pool", "sequences", "queue",
               "connections", "open files", "body", "drain", "off"):
    assert re.search(rf"\b{word}\b", text.stdout), word
  report = json.loads(run("serve", str(servers.SMOLLM), "--dry-run", "--json", "--port", "0", "--context", "1024").stdout)
  assert report["limits"]["context"] == {"value": 1024, "unit": "tokens", "from": "--context; trained for 8192"}
  components = report["memory"]["components"]
  assert sum(part["bytes"] for part in components) == report["memory"]["planned_bytes"] <= report["memory"]["limit_bytes"]
  assert all(limit["from"] for limit in report["limits"].values())


def test_an_address_of_six_is_an_address_too():
  try:
    with socket.socket(socket.AF_INET6) as probe:
      probe.bind(("::1", 0))
  except OSError:
    pytest.skip("this machine has no IPv6")
  report = json.loads(run("serve", str(servers.SMOLLM), "--dry-run", "--json", "--port", "0", "--host", "::1").stdout)
  assert re.fullmatch(r"http://\[::1\]:\d+/v1", report["address"]) and report["warnings"] == []


def test_few_open_files_lower_the_connections_and_say_so():
  command = f"ulimit -n 500; exec {servers.REPRISE} serve {servers.SMOLLM} --dry-run --json --port 0"
  report = json.loads(subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True).stdout)
  assert report["limits"]["connections"]["value"] < 500
  assert "ulimit" in report["limits"]["connections"]["from"]


def test_little_memory_lowers_the_context_and_says_so():
  report = json.loads(run("serve", str(servers.SMOLLM), "--dry-run", "--json", "--port", "0", "--memory", "500MiB").stdout)
  context = report["limits"]["context"]
  assert 512 <= context["value"] < 8192 and context["from"] == "the memory lowered it; trained for 8192"
  assert report["memory"]["planned_bytes"] <= 500 << 20


def test_an_open_door_is_a_warning(tmp_path):
  (tmp_path / "keys").write_text("sk-one\n")
  (tmp_path / "keys").chmod(0o644)
  opened = ["serve", str(servers.SMOLLM), "--dry-run", "--json", "--port", "0", "--host", "0.0.0.0"]
  assert "--api-key-file" in json.loads(run(*opened).stdout)["warnings"][0]
  with_keys = json.loads(run(*opened, "--api-key-file", str(tmp_path / "keys")).stdout)
  assert len(with_keys["warnings"]) == 1 and "chmod 600" in with_keys["warnings"][0]
  assert "API keys" not in [off["name"] for off in with_keys["off"]]
  (tmp_path / "keys").chmod(0o600)
  assert json.loads(run(*opened, "--api-key-file", str(tmp_path / "keys")).stdout)["warnings"] == []


def test_too_little_memory_names_three_settings_and_each_of_them_works():
  refused = run("serve", str(servers.SMOLLM), "--dry-run", "--port", "0", "--memory", "100MiB")
  assert refused.returncode == 1
  settings = refused.stderr.split("each checked:\n")[1].splitlines()
  assert len(settings) == 3
  for setting in settings:
    again = run("serve", str(servers.SMOLLM), "--dry-run", "--port", "0", *setting.split())
    assert again.returncode == 0, f"{setting}: {again.stderr}"


@pytest.mark.parametrize("arguments, status, words", [
    (["serve"], 2, "reprise serve MODEL.gguf"),
    (["sreve"], 2, "reprise serve"),
    (["serve", "{model}", "--contxt", "5"], 2, "--context"),
    (["serve", "{model}", "--ctx-size", "5"], 2, "--context"),
    (["serve", "{model}", "--context", "1000000"], 2, "8192"),
    (["serve", "{model}", "--kv-type", "q8_0"], 2, "f16, bf16, f32"),
    (["serve", "{model}", "--port", "70000"], 2, "65535"),
    (["serve", "{model}", "--host", "nowhere.invalid"], 2, "127.0.0.1"),
    (["serve", "{model}", "--host", "203.0.113.1"], 2, "address of this machine"),
    (["serve", "{model}", "--memory", "lots"], 2, "6GiB"),
    (["serve", "{model}", "--memory", "900TiB"], 2, "GiB"),
    (["serve", "{model}", "--drain-timeout", "5"], 2, "30s"),
    (["serve", "{model}", "--cache-disk", "lots"], 2, "or auto, or off"),
    (["serve", "{model}", "--cache-disk", "1MiB"], 2, "64 blocks"),
    (["serve", "{model}", "--cache-format", "zip"], 2, "neither raw nor compressed"),
    (["serve", "{model}", "--chat-template", "{tmp}/none.jinja"], 1, "none.jinja"),
    (["serve", "{model}", "--chat-template", "{tmp}/broken.jinja"], 2, "the model's own template"),
    (["serve", "{tmp}/none.gguf"], 1, "holds broken.gguf, text.gguf"),
    (["serve", "{tmp}/nowhere/none.gguf"], 1, "no directory"),
    (["serve", "{tmp}"], 2, "broken.gguf, text.gguf"),
    (["serve", "{tmp}/text.gguf"], 3, "not a GGUF file"),
    (["serve", "{tmp}/broken.gguf"], 3, "download it again"),
])
def test_a_start_that_cannot_work_says_what_to_do(tmp_path, arguments, status, words):
  (tmp_path / "text.gguf").write_text("<html>404</html>")
  (tmp_path / "broken.jinja").write_text("{% if %}")
  with open(servers.SMOLLM, "rb") as whole:
    (tmp_path / "broken.gguf").write_bytes(whole.read(3_000_000))
  done = run(*(argument.format(model=servers.SMOLLM, tmp=tmp_path) for argument in arguments))
  assert done.returncode == status, done.stderr
  assert words in done.stderr


def test_a_busy_port_is_told_before_the_model_is_read():
  with socket.socket() as busy:
    busy.bind(("127.0.0.1", 0))
    busy.listen()
    done = run("serve", str(servers.SMOLLM), "--port", str(busy.getsockname()[1]))
  assert done.returncode == 1 and "taken" in done.stderr and "--port" in done.stderr
  assert "reading" not in done.stderr


def test_a_base_model_is_served_without_chat_and_says_so(tmp_path):
  base = tmp_path / "base.gguf"
  base.write_bytes(servers.SMOLLM.read_bytes().replace(b"tokenizer.chat_template", b"tokenizer.chat_nothing!", 1))
  with servers.Server(base, "--context", "1024") as server:
    assert "--chat-template FILE" in server.banner["chat"]
    client = client_of(server)
    with pytest.raises(openai.BadRequestError) as error:
      client.chat.completions.create(model="base", messages=STORY, max_tokens=1)
    assert "/v1/completions" in error.value.body["message"] and "--chat-template" in error.value.body["message"]
    assert client.completions.create(model="base", prompt="The capital of France is", max_tokens=4).choices[0].text
  chat = run("chat", str(base))
  assert chat.returncode == 1 and "base model" in chat.stderr and "--chat-template FILE" in chat.stderr
