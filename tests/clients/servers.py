"""Servers for tests: `reprise serve` as a subprocess, ready before it is handed out."""

import json
import os
import pathlib
import queue
import signal
import subprocess
import threading

READY_S_MAX = 120
STOP_S_MAX = 40

REPRISE = os.environ.get("REPRISE_BINARY", "build/release/reprise")
CACHE = pathlib.Path(os.environ.get("REPRISE_CACHE", pathlib.Path.home() / ".cache" / "reprise"))
MODELS = pathlib.Path(os.environ.get("REPRISE_MODELS", CACHE / "models"))
SMOLLM = MODELS / "smollm2-135m-instruct-q4_1.gguf"
QWEN = MODELS / "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"


class Server:
  """A running server. `url` is its address without /v1, `disk` what it found in its cache directory: without
  --cache-dir it has none, so that no test finds what another one asked."""

  def __init__(self, model, *arguments):
    disk = [] if "--cache-dir" in arguments else ["--cache-disk", "off"]
    command = [REPRISE, "serve", str(model), "--port", "0", "--json", "--memory", "1500MiB", *disk, *arguments]
    self.log = []
    self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                    text=True)
    self._lines = queue.Queue()
    for stream, sink in ((self.process.stdout, self._lines.put), (self.process.stderr, self.log.append)):
      threading.Thread(target=self._read, args=(stream, sink), daemon=True).start()
    self.banner = self._wait_until_ready()
    self.url = self.banner["address"].removesuffix("/v1")
    self.model = self.banner["served_as"][0]

  @staticmethod
  def _read(stream, sink):
    for line in stream:
      sink(line)

  def _wait_until_ready(self):
    text = ""
    while True:
      try:
        line = self._lines.get(timeout=READY_S_MAX)
      except queue.Empty:
        raise RuntimeError(f"no server within {READY_S_MAX} s: {text}{''.join(self.log)}") from None
      if line.startswith('{"model"') and '"ready"' in line:
        self.disk = json.loads(line)["disk"]
        return json.loads(text)
      text += line

  def stop(self, sig=signal.SIGTERM):
    """The exit status."""
    if self.process.poll() is None:
      self.process.send_signal(sig)
    return self.process.wait(STOP_S_MAX)

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.stop()
