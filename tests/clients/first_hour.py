"""Types what a new user would in the first hour, mistakes included, and prints the transcript as docs/first-hour.md.

  tools/client_venv --run tests/clients/first_hour.py > docs/first-hour.md      # REPRISE_BINARY as in the tests
"""

import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import time

import servers
from test_terminal import Terminal

SMOLLM, QWEN = (f"models/{path.name}" for path in (servers.SMOLLM, servers.QWEN))
PORT = 8080
JSON = "-H 'Content-Type: application/json'"


def say(text):
  print(text, end="\n\n")


def shown(*parts):
  print("```")
  for part in parts:
    print(part.rstrip("\n").replace(os.environ["HOME"], "~"))
  print("```\n")


def typed(command, lines_max=None):
  """Runs a command line as a shell would and shows it with its output."""
  done = subprocess.run(command, shell=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                        text=True, timeout=120, check=False)
  lines = [line for line in done.stdout.splitlines() if line]
  if lines_max and len(lines) > lines_max:
    lines[lines_max:] = ["..."]
  shown(f"$ {command}", *lines, *([f"(exit status {done.returncode})"] if done.returncode else []))


class Background:
  """`reprise serve ...` in a second terminal."""

  def __init__(self, *arguments):
    self.lines = []
    self.process = subprocess.Popen(["reprise", "serve", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in self.process.stdout:
      self.lines.append(line)
      if line.startswith("ready"):
        break
    self.command = f"$ reprise serve {' '.join(arguments)}"

  def stop(self):
    self.process.send_signal(signal.SIGTERM)
    _, log = self.process.communicate(timeout=60)
    return "".join(line for line in log.splitlines(keepends=True) if not line.startswith("reading and packing"))


def conversation(home):
  chat = Terminal(["chat", SMOLLM, "--temperature", "0", "--max-tokens", "48"], home)
  text = chat.wait_for("> ")
  for line in ("/system You are brief.", "Name three rivers.", "Which is the longest?", "/stats", "/sav talk.json",
               "/save talk.json"):
    chat.type(line + "\n", wait=False)
    text += chat.wait_for(r"\n> ")
  chat.type("\x04", wait=False)
  assert chat.exit_status() == 0
  text = text.replace("\r\n", "\n").replace("\r", "\n").replace("reading and packing the weights: ", "")
  # libedit echoes a line as it grows; what is left of it is the line.
  text = "\n".join(line for line in text.splitlines() if not re.fullmatch(r"\d+ % ?", line))
  return "$ reprise chat " + SMOLLM + " --temperature 0 --max-tokens 48\n" + text.strip("> \n")


def first_steps():
  say("# The first hour")
  say("What a new user types after `./run --build`, mistakes included, and what comes back: run on "
      f"{time.strftime('%Y-%m-%d')} by `tests/clients/first_hour.py`, nothing edited but the weights' progress left out. "
      "`reprise` stands for `build/release/reprise`; `tools/get_model` fetched the models.")
  say("## Serve")
  server = Background(SMOLLM)
  shown(server.command, *server.lines)
  say("## Ask")
  typed(f"curl -sS http://127.0.0.1:{PORT}/v1/chat/completions {JSON} -d '"
        '{"max_tokens": 24, "temperature": 0, "messages": [{"role": "user", "content": "Name three rivers."}]}\'')
  typed(f"curl -sSN http://127.0.0.1:{PORT}/v1/chat/completions {JSON} -d '"
        '{"stream": true, "max_tokens": 4, "temperature": 0, "messages": [{"role": "user", "content": "Name three rivers."}]}\'')
  typed(f"curl -sS http://127.0.0.1:{PORT}/v1/models")
  say("## Ask wrongly")
  typed(f"curl -sS http://127.0.0.1:{PORT}/v1/chat/completions {JSON} -d '"
        '{"model": "gpt-4o", "messages": [{"role": "user", "content": "Hello"}]}\'')
  typed(f"curl -sS http://127.0.0.1:{PORT}/v1/chat/completions {JSON} -d '"
        '{"temprature": 0, "messages": [{"role": "user", "content": "Hello"}]}\'')
  typed(f"curl -sS http://127.0.0.1:{PORT}/v1/chat/completions {JSON} -d '" '{"messages": "Hello"}\'')
  typed(f"curl -sS http://127.0.0.1:{PORT}/chat/completions {JSON} -d '{{}}'")
  say("The server's log meanwhile, and how it ends on Ctrl-C:")
  shown(server.stop())


def plugins():
  say("## An editor's plugin")
  say("Completion in the middle of a file, as plugins send it for Qwen's coder models, and the requests that they try first:")
  server = Background(QWEN, "--alias", "coder")
  shown(server.command, server.lines[-1])
  typed(f"curl -sS http://127.0.0.1:{PORT}/v1/completions {JSON} -d '" r'{"model": "coder", "prompt": "<|fim_prefix|>'
        r'def add(a, b):\n    return <|fim_suffix|>\n\nprint(add(1, 2))\n<|fim_middle|>", "max_tokens": 16, "temperature": 0, '
        r'"stop": ["\n"]}' "'")
  typed(f"curl -sSN http://127.0.0.1:{PORT}/v1/chat/completions {JSON} -d '" '{"model": "coder", "stream": true, "max_tokens": 6, '
        '"temperature": 0, "messages": [{"role": "system", "content": "Answer with code only."}, '
        '{"role": "user", "content": "Reverse a list in Python."}]}\'')
  typed(f"curl -sS http://127.0.0.1:{PORT}/infill {JSON} -d '" '{"input_prefix": "a", "input_suffix": "b"}\'')
  typed(f"curl -sS http://127.0.0.1:{PORT}/api/tags")
  server.stop()


def mistakes():
  say("## Starts that cannot work")
  for command in ("reprise", "reprise sreve", f"reprise {SMOLLM}", "reprise serve", f"reprise serve {SMOLLM} --contxt 4096",
                  f"reprise serve {SMOLLM} --ctx-size 4096", f"reprise serve {SMOLLM} --context 100000",
                  f"reprise serve {SMOLLM} --kv-type q8_0", "reprise serve models/smollm2.gguf", "reprise serve models",
                  "reprise serve page.gguf", "reprise serve half.gguf", f"reprise serve {SMOLLM} --host 203.0.113.7",
                  f"reprise serve {SMOLLM} --memory 100MiB", f"reprise serve {SMOLLM} --memory 64GiB",
                  f"reprise serve {SMOLLM} --chat-template broken.jinja", "reprise chat", "reprise chat --url http://127.0.0.1:9"):
    typed(command)
  with socket.socket() as busy:
    busy.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    busy.bind(("127.0.0.1", PORT))
    busy.listen()
    typed(f"reprise serve {SMOLLM}")
  say("## A base model")
  server = Background("base.gguf")
  shown(server.command, *(line for line in server.lines if line.startswith(("chat", "ready"))))
  typed(f"curl -sS http://127.0.0.1:{PORT}/v1/chat/completions {JSON} -d '" '{"messages": [{"role": "user", "content": "Hello"}]}\'')
  typed(f"curl -sS http://127.0.0.1:{PORT}/v1/completions {JSON} -d '"
        '{"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}\'')
  server.stop()
  typed("reprise chat base.gguf")


def main():
  binary = pathlib.Path(servers.REPRISE).resolve()
  with tempfile.TemporaryDirectory() as directory:
    home = pathlib.Path(directory)
    (home / "bin").mkdir()
    (home / "bin" / "reprise").symlink_to(binary)
    (home / "models").mkdir()
    for model in (servers.SMOLLM, servers.QWEN):
      (home / "models" / model.name).symlink_to(model)
    (home / "page.gguf").write_text("<html>404</html>")
    with open(servers.SMOLLM, "rb") as whole:
      (home / "half.gguf").write_bytes(whole.read(50_000_000))
    (home / "base.gguf").write_bytes(servers.SMOLLM.read_bytes().replace(b"tokenizer.chat_template", b"tokenizer.chat_nothing!", 1))
    (home / "broken.jinja").write_text("{% for message in messages %}")
    os.environ.update(PATH=f"{home}/bin:{os.environ['PATH']}", HOME=str(home))
    os.environ.pop("XDG_CACHE_HOME", None)
    servers.REPRISE = str(home / "bin" / "reprise")
    os.chdir(home)
    first_steps()
    say("## Talk")
    shown(conversation(home))
    plugins()
    mistakes()


if __name__ == "__main__":
  main()
