"""Every example runs as it stands and prints what it says it prints."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

import servers

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
LINES_MAX = 60


def run(server, name, *arguments):
  path = EXAMPLES / name
  command = [sys.executable, "-B", str(path)] if path.suffix == ".py" else [str(path)]
  done = subprocess.run([*command, *arguments], env=os.environ | {"REPRISE_URL": server.url}, capture_output=True, text=True,
                        timeout=60, check=False)
  assert done.returncode == 0, done.stderr
  return done.stdout


def test_examples_are_short_and_listed():
  table = (EXAMPLES / "README.md").read_text()
  for path in EXAMPLES.iterdir():
    name = path.name + "/" * path.is_dir()
    assert path.is_dir() or len(path.read_text().splitlines()) < LINES_MAX, name
    assert name == "README.md" or f"]({name})" in table


def test_curl(smollm):
  whole, *stream = run(smollm, "chat.sh").splitlines()
  text = json.loads(whole)["choices"][0]["message"]["content"]
  chunks = [json.loads(line[6:]) for line in stream if line.startswith("data: {")]
  assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == text
  assert [line for line in stream if line][-1] == "data: [DONE]"


def test_chat(smollm):
  printed = run(smollm, "chat.py")
  assert printed.count("prompt tokens reused]") == 2 and "[0 of" not in printed.rsplit("[", 1)[1]


def test_stream(smollm):
  assert "[64 tokens after" in run(smollm, "stream.py")


def test_logprobs(smollm):
  assert "instead of" in run(smollm, "logprobs.py")


def test_embedding_the_engine():
  binary = os.environ.get("REPRISE_EMBED")
  if not binary:
    pytest.skip("REPRISE_EMBED names no binary")
  done = subprocess.run([binary, str(servers.SMOLLM), "Why is the sky blue?"], capture_output=True, text=True, timeout=60,
                        check=False)
  assert done.returncode == 0 and "prompt tokens reused]" in done.stdout, done.stderr


def test_tools(qwen):
  lines = run(qwen, "tools.py").splitlines()
  assert lines[0] == "the model calls temperature({'city': 'Paris'})" and lines[1]


def test_json_schema(smollm):
  assert "km" in run(smollm, "json_schema.py")


def test_explain(smollm):
  first, second, *_ = run(smollm, "explain.py").splitlines()
  assert "message 0 (system) differs" in second and "date or time" not in first


def test_agent(qwen):
  assert run(qwen, "agent.py").strip()
