"""`reprise chat` as a person meets it: at a pseudo-terminal, and with lines from a pipe."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import time

import pytest

import servers

WAIT_S = 60
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]")


class Terminal:
  """A program at a terminal of its own."""

  def __init__(self, arguments, home):
    self.text = ""
    self.pid, self.fd = pty.fork()
    if self.pid == 0:
      os.environ.update(HOME=str(home), XDG_STATE_HOME=str(home / "state"), TERM="xterm", LC_ALL="C")
      os.execv(servers.REPRISE, [servers.REPRISE, *arguments])

  def wait_for(self, pattern):
    """Everything shown up to the pattern, without escape codes; what follows stays for the next call."""
    deadline = time.monotonic() + WAIT_S
    while not (found := re.search(pattern, ESCAPES.sub("", self.text), re.S)):
      assert time.monotonic() < deadline, f"no {pattern!r} in {self.text!r}"
      if select.select([self.fd], [], [], 0.1)[0]:
        try:
          self.text += os.read(self.fd, 4096).decode(errors="replace")
        except OSError:  # the program has ended
          assert re.search(pattern, ESCAPES.sub("", self.text), re.S), f"no {pattern!r} in {self.text!r}"
    shown = ESCAPES.sub("", self.text)
    self.text = shown[found.end():]
    return shown[:found.end()]

  def type(self, text, wait=True):
    """At the prompt; the terminal turns raw a moment after it is shown, and echoes what came before a second time."""
    if wait:
      self.wait_for("> ")
      time.sleep(0.1)
    os.write(self.fd, text.encode())

  def exit_status(self):
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
      pid, status = os.waitpid(self.pid, os.WNOHANG)
      if pid:
        return os.waitstatus_to_exitcode(status)
      if select.select([self.fd], [], [], 0.05)[0]:
        try:
          os.read(self.fd, 4096)
        except OSError:
          pass
    os.kill(self.pid, signal.SIGKILL)
    raise AssertionError("the program did not end")


def ended_with(chat, path):
  """The messages that were saved there, after Ctrl-D."""
  chat.type("\x04")
  assert chat.exit_status() == 0
  return json.loads(path.read_text())["messages"]


@pytest.fixture(params=["file", "url"])
def arguments(request, smollm):
  """The same conversation with a model in the process and with a server."""
  if request.param == "file":
    return ["chat", str(servers.SMOLLM), "--context", "2048", "--memory", "1GiB", "--cache-disk", "off"]
  return ["chat", "--url", f"{smollm.url}/v1"]


TURN = r"(\d+) reused · (\d+) computed · (\d+) tokens at [\d.]+/s · first after \d+ ms"


def test_a_conversation_at_a_terminal(arguments, tmp_path):
  chat = Terminal([*arguments, "--temperature", "0", "--max-tokens", "24"], tmp_path)
  chat.wait_for("/help lists the commands")
  chat.type("Name three rivers.\n")
  chat.wait_for(TURN)
  chat.type("Und in Zürich, 東京? \\\nlengths?\n")
  chat.wait_for("… ")
  line = re.search(TURN, chat.wait_for(TURN))
  assert int(line[1]) >= 0 and int(line[3]) > 1
  chat.type("/retry\n")
  again = re.search(TURN, chat.wait_for(TURN))
  assert int(again[1]) > int(again[2]), "the whole conversation was there already"
  chat.type("/stats\n")
  chat.wait_for(r"3 replies · \d+ prompt tokens")
  chat.type(f"/save {tmp_path}/talk.json\n")
  chat.wait_for("saved as")
  chat.type("/sav\n")
  chat.wait_for(r"did you mean /save\?")
  chat.type("/new\n")
  chat.wait_for("a new conversation")
  chat.type(f"/load {tmp_path}/talk.json\n")
  chat.wait_for("loaded")
  turns = ended_with(chat, tmp_path / "talk.json")
  assert [turn["role"] for turn in turns] == ["user", "assistant", "user", "assistant"]
  assert turns[2]["content"] == "Und in Zürich, 東京? \nlengths?"
  history = tmp_path / "state" / "reprise" / "chat_history"
  assert "Name\\040three\\040rivers." in history.read_text() or "Name three rivers." in history.read_text()
  assert history.stat().st_mode & 0o077 == 0


def test_ctrl_c_stops_the_reply_and_keeps_the_conversation(arguments, tmp_path):
  chat = Terminal([*arguments, "--max-tokens", "1500", "--seed", "3"], tmp_path)
  chat.type("Write a very long story about a river, with many chapters.\n")
  chat.wait_for(r"chapters\.\r\n(?!(> )?Write).{20}")
  chat.type("\x03", wait=False)
  chat.wait_for("· stopped")
  chat.type("half a line that is dropped\x03")
  chat.type(f"/save {tmp_path}/talk.json\n")
  chat.wait_for("saved as")
  turns = ended_with(chat, tmp_path / "talk.json")
  assert [turn["role"] for turn in turns] == ["user", "assistant"] and turns[1]["content"].strip()


def test_lines_from_a_pipe_get_replies_and_no_escape_codes(arguments, tmp_path):
  done = subprocess.run([servers.REPRISE, *arguments, "--temperature", "0", "--max-tokens", "16", "--system", "Be brief."],
                        input="Name three rivers.\n\n/help\nAnd three lakes.", capture_output=True, text=True, timeout=WAIT_S,
                        env=os.environ | {"HOME": str(tmp_path), "TERM": "xterm"}, check=False)
  assert done.returncode == 0, done.stderr
  assert "\x1b" not in done.stdout and "reused" not in done.stdout
  assert len(done.stdout.strip()) > 10
  assert "/retry" in done.stderr and "/retry" not in done.stdout


def test_a_full_conversation_says_how_to_go_on(arguments, tmp_path):
  chat = Terminal([*arguments, "--max-tokens", "4", "--system", "river " * 2500], tmp_path)
  chat.type("Hello\n")
  chat.wait_for("2048.*/new begins another")
  chat.type("/system\n")
  chat.wait_for("no system text")
  chat.type("Hello\n")
  chat.wait_for(TURN)
  chat.type("\x04")
  assert chat.exit_status() == 0


@pytest.mark.parametrize("wrong, advice", [
    (["chat"], "--url"),
    (["chat", "--url", "http://127.0.0.1:9"], "reprise serve MODEL.gguf"),
    (["chat", "--url", "https://example"], "http://"),
    (["chat", "--url", "http://[::1]:9/v1"], "no answer from ::1:9"),
    (["chat", "--url", "[::1"], "http://127.0.0.1:8080"),
    (["chat", "nowhere.gguf"], "no such file"),
])
def test_a_chat_that_cannot_start_says_what_to_do(wrong, advice):
  done = subprocess.run([servers.REPRISE, *wrong], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=WAIT_S,
                        check=False)
  assert done.returncode != 0 and advice in done.stderr
