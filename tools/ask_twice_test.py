#!/usr/bin/env python3
"""Tests of ask_twice against a server made here, and of what the scripts say to wrong arguments."""

import http.server
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest

TOOLS = pathlib.Path(__file__).resolve().parent


class FakeServer:
  """Answers completions from a list of (text, cached tokens), in order."""

  def __init__(self, answers, has_chat_template=True):
    answers = list(answers)
    self.paths = []
    paths = self.paths

    class Handler(http.server.BaseHTTPRequestHandler):

      def reply(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

      def do_GET(self):
        self.reply(200, {"data": [{"id": "tiny"}]})

      def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        paths.append(self.path)
        chat = "chat" in self.path
        if chat and not has_chat_template:
          self.reply(400, {"error": {"code": "unsupported"}})
          return
        if not answers:
          self.reply(500, {"error": {"code": "internal"}})
          return
        text, cached = answers.pop(0)
        choice = {"message": {"content": text}} if chat else {"text": text}
        self.reply(200, {"choices": [choice],
                         "usage": {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": cached}},
                         "timings": {"first_token_ms": 100.0 / (cached + 1), "computed_n": 10 - cached}})

      def log_message(self, *_):
        pass

    self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
    threading.Thread(target=self.server.serve_forever, daemon=True).start()

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.server.shutdown()
    self.server.server_close()


def ask_twice(url):
  with tempfile.NamedTemporaryFile("w", suffix=".txt") as page:
    page.write("A page.")
    page.flush()
    result = subprocess.run([sys.executable, TOOLS / "ask_twice", url, page.name, "What?"], capture_output=True,
                            text=True, check=False)
  return result.returncode, result.stdout + result.stderr


class AskTwiceTest(unittest.TestCase):

  def test_same_answer_with_reuse_is_success(self):
    with FakeServer([("Yes.", 0), ("Yes.", 9)]) as server:
      status, text = ask_twice(server.url)
    self.assertEqual(status, 0, text)
    self.assertIn("9 of 10 prompt tokens reused, 1 computed", text)
    self.assertIn("first token after 10.0 ms", text)
    self.assertIn("10 times as fast", text)

  def test_no_reuse_is_failure(self):
    with FakeServer([("Yes.", 0), ("Yes.", 0)]) as server:
      status, text = ask_twice(server.url)
    self.assertEqual(status, 1)
    self.assertIn("reused nothing", text)

  def test_another_answer_is_failure(self):
    with FakeServer([("Yes.", 0), ("No.", 9)]) as server:
      status, text = ask_twice(server.url)
    self.assertEqual(status, 1)
    self.assertIn("differ", text)

  def test_an_error_is_shown(self):
    with FakeServer([("Yes.", 0)]) as server:
      status, text = ask_twice(server.url)
    self.assertEqual(status, 1)
    self.assertIn("answered 500", text)

  def test_nobody_there_is_failure(self):
    with FakeServer([]) as server:
      url = server.url
    status, text = ask_twice(url)
    self.assertEqual(status, 1)
    self.assertIn("no usable answer", text)

  def test_a_base_model_is_asked_by_completion(self):
    with FakeServer([("Yes.", 0), ("Yes.", 9)], has_chat_template=False) as server:
      status, text = ask_twice(server.url)
      self.assertEqual(server.paths[:2], ["/v1/chat/completions", "/v1/completions"])
    self.assertEqual(status, 0, text)


class ScriptsTest(unittest.TestCase):

  def run_script(self, name, *arguments):
    result = subprocess.run([TOOLS.parent / name, *arguments], capture_output=True, text=True, check=False,
                            stdin=subprocess.DEVNULL)
    return result.returncode, result.stdout + result.stderr

  def test_help_names_every_way_to_call(self):
    status, text = self.run_script("run", "--help")
    self.assertEqual(status, 0)
    for part in ("--once", "--build", "--get-model", "-- ...", "REPRISE_CACHE", "REPRISE_MODELS"):
      self.assertIn(part, text)
    status, text = self.run_script("test", "--help")
    self.assertEqual(status, 0)
    self.assertIn("./test long", text)

  def test_wrong_arguments_are_refused_before_anything_starts(self):
    for script in ("run", "test"):
      status, text = self.run_script(script, "--bogus")
      self.assertNotEqual(status, 0)
      self.assertIn("unknown argument: --bogus", text)
    status, text = self.run_script("run", "--get-model")
    self.assertNotEqual(status, 0)
    self.assertIn("needs a file name", text)


if __name__ == "__main__":
  unittest.main()
