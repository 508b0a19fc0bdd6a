"""What a restart remembers: the cache directory under a server that is killed, a second server on it, damage, and the
commands that look into it."""

import json
import os
import pathlib
import re
import signal
import subprocess
import time

import httpx
import pytest

import servers

PAGE = (pathlib.Path(__file__).resolve().parents[2] / "tools" / "page.txt").read_text(encoding="utf-8")
SYSTEM = " ".join(PAGE.split()[:170])
LONG = {"messages": [{"role": "user", "content": f"{PAGE}\n\nWho was the first keeper of the lighthouse?"}],
        "max_tokens": 12, "temperature": 0, "cache": {"receipt": True}}


def serve(directory, *arguments, size="2GiB"):
  return servers.Server(servers.SMOLLM, "--context", "2048", "--cache-dir", str(directory), "--cache-disk", size,
                        *arguments)


def ask(server, body=LONG):
  reply = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120)
  assert reply.status_code == 200, reply.text
  return reply.json()


def text(reply):
  return reply["choices"][0]["message"]["content"]


def stats(server):
  return httpx.get(f"{server.url}/v1/cache/stats").json()


def wait_until_stored(server, records=1):
  """Until so many records are written, and for a while none was."""
  deadline = time.monotonic() + 30
  stored, since = 0, time.monotonic()
  while stored < records or time.monotonic() - since < 1:
    assert time.monotonic() < deadline, stats(server)["tiers"]
    now = stats(server)["tiers"]["disk"]["operations"]["store"]["ok"]
    if now != stored:
      stored, since = now, time.monotonic()
    time.sleep(0.05)


def cache(command, *arguments):
  return subprocess.run([servers.REPRISE, "cache", command, *map(str, arguments)], stdin=subprocess.DEVNULL,
                        capture_output=True, text=True, timeout=60, check=False)


def model_directory(directory):
  (model,) = [path for path in pathlib.Path(directory).iterdir() if path.is_dir()]
  return model


def check_remembered(cold, warm):
  """That `warm` is the same reply, and most of its prompt came from the disk: all that was worth its time, on a machine
  that does other things besides, and then the receipt says so."""
  assert text(warm) == text(cold)
  cached, prompt = warm["timings"]["cached"], warm["usage"]["prompt_tokens"]
  reasons = [miss["reason"] for miss in warm["prefix_cache_receipt"]["miss"]]
  assert cached["disk"] > 0.9 * prompt or (cached["disk"] > 0 and reasons == ["tier_timeout"]), (cached, reasons)
  assert cached["disk"] + cached["pool"] < prompt
  assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] == sum(cached.values())
  receipt = warm["prefix_cache_receipt"]
  assert receipt["hit"]["by_tier"] == cached and receipt["decision"] == "safe_reuse"
  assert receipt["plan"]["fetch_tokens"] == cached["disk"]
  assert receipt["plan"]["actual_load_ms"] == warm["timings"]["load_ms"] > 0
  assert receipt["plan"]["estimated_saved_ms"] > receipt["plan"]["estimated_cost_ms"] > 0


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
  """A directory in which a server that was killed has left LONG, and its reply."""
  directory = tmp_path_factory.mktemp("kv")
  with serve(directory) as server:
    assert server.disk["blocks"] == 0 and not server.disk["read_only"] and server.disk["error"] is None
    cold = ask(server)
    assert cold["timings"]["cached"]["disk"] == 0, "control: it was computed"
    wait_until_stored(server)
    assert server.stop(signal.SIGKILL) == -signal.SIGKILL
  return directory, cold


@pytest.fixture
def copy(stored, tmp_path):
  """A copy to damage, and the reply."""
  subprocess.run(["cp", "-r", str(stored[0]), str(tmp_path / "kv")], check=True)
  return tmp_path / "kv", stored[1]


def test_a_killed_server_remembers(copy):
  directory, cold = copy
  with serve(directory) as server:
    assert server.disk["blocks"] > 0 and server.disk["bytes"] > 0
    explained = httpx.post(f"{server.url}/v1/cache/explain", json=LONG).json()["prefix_cache_receipt"]
    warm = ask(server)
    check_remembered(cold, warm)
    assert explained["hit"] == warm["prefix_cache_receipt"]["hit"], "explain told it before"
    assert explained["plan"]["fetch_tokens"] == warm["timings"]["cached"]["disk"]
    again = ask(server)
    assert again["timings"]["cached"]["disk"] == 0 and again["timings"]["cached"]["pool"] > 0, "it is in memory now"
    counted = stats(server)
    assert counted["kv_tokens_total"]["disk"] == warm["timings"]["cached"]["disk"]
    fetch = counted["tiers"]["disk"]["operations"]["fetch"]
    assert fetch["ok"] > 0 and fetch["checksum_failed"] == fetch["record_damaged"] == fetch["tier_error"] == 0
    scraped = httpx.get(f"{server.url}/metrics").text
    assert f'reprise_kv_tokens_total{{source="disk"}} {warm["timings"]["cached"]["disk"]}\n' in scraped
    assert f'reprise_tier_operations_total{{tier="disk",op="fetch",result="ok"}} {fetch["ok"]}\n' in scraped
    assert any(f"disk={warm['timings']['cached']['disk']}" in line for line in server.log)
  with servers.Server(servers.SMOLLM, "--context", "2048") as other:
    assert ask(other)["timings"]["cached"]["disk"] == 0, "control: without the directory it is computed"


def test_a_system_prompt_of_240_tokens_survives(tmp_path):
  def body(question):
    return {"messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
            "max_tokens": 4, "temperature": 0, "cache": {"receipt": True}}
  with serve(tmp_path) as server:
    tokens = httpx.post(f"{server.url}/tokenize", json={"content": SYSTEM}).json()["tokens"]
    assert 200 < len(tokens) < 300
    ask(server, body("Which year was that?"))
    wait_until_stored(server)
    server.stop(signal.SIGKILL)
  with serve(tmp_path) as server:
    warm = ask(server, body("Name the lighthouse."))
    assert warm["timings"]["cached"]["disk"] >= len(tokens) - 32, warm["timings"]
    cold = ask(server, body("Name the lighthouse.") | {"cache": {"read": False}})
    assert text(warm) == text(cold)


def test_sigterm_saves_what_is_on_its_way(tmp_path):
  with serve(tmp_path) as server:
    cold = ask(server)
    assert server.stop() == 0  # at once: nothing was waited for
  with serve(tmp_path) as server:
    check_remembered(cold, ask(server))


def test_a_second_server_reads_what_the_first_one_wrote(copy):
  directory, cold = copy
  with serve(directory) as first, serve(directory) as second:
    assert not first.disk["read_only"] and second.disk["read_only"]
    check_remembered(cold, ask(second))
    assert stats(second)["tiers"]["disk"]["writable"] is False
    for command in (["gc"], ["purge", "--scope", "default"]):
      refused = cache(*command, "--cache-dir", directory)
      assert refused.returncode == 1 and "a server is using" in refused.stderr
    assert cache("verify", "--cache-dir", directory).returncode == 0


def test_a_flipped_bit_is_found_and_computed_again(copy):
  directory, cold = copy
  sound = cache("verify", "--cache-dir", directory)
  assert sound.returncode == 0 and "damaged     nothing" in sound.stdout, sound.stderr
  segment = max(model_directory(directory).glob("segment-*"), key=lambda path: path.stat().st_size)
  flipped_at = segment.stat().st_size // 3
  with open(segment, "r+b") as file:
    file.seek(flipped_at)
    byte = file.read(1)[0]
    file.seek(flipped_at)
    file.write(bytes([byte ^ 0x40]))
  damaged = cache("verify", "--cache-dir", directory)
  assert damaged.returncode == 3 and "damaged" in damaged.stderr
  found = re.search(rf"damaged +{re.escape(str(segment))} at (\d+): ", damaged.stdout)
  assert found and int(found[1]) <= flipped_at, damaged.stdout
  as_json = cache("verify", "--json", "--cache-dir", directory)
  assert as_json.returncode == 3
  (problem,) = json.loads(as_json.stdout)["models"][0]["problems"]
  assert problem["file"] == str(segment) and problem["offset"] == int(found[1])
  with serve(directory) as server:
    warm = ask(server)
    assert text(warm) == text(cold)
    assert warm["timings"]["cached"]["disk"] < cold["usage"]["prompt_tokens"] * 0.9
    disk = stats(server)["tiers"]["disk"]
    assert disk["operations"]["fetch"]["checksum_failed"] + disk["damaged"] > 0
    assert warm["prefix_cache_receipt"]["miss"][0]["reason"] in ("checksum_failed", "record_damaged", "never_seen")


def test_the_commands_at_a_directory(copy):
  directory, _ = copy
  model = model_directory(directory).name
  for where in (directory, directory / model):
    told = cache("stat", "--cache-dir", where)
    assert told.returncode == 0 and " tokens in " in told.stdout, told.stderr
  (counted,) = json.loads(cache("stat", "--json", "--cache-dir", directory).stdout)["models"]
  assert counted["model"] == model and counted["tokens"] > 500 and counted["bytes"] >= counted["bytes_records"] > 0
  (listed,) = json.loads(cache("list", "--json", "--cache-dir", directory).stdout)["models"]
  (namespace,) = listed["namespaces"]
  assert namespace["scope"] == "default" and namespace["tokens"] == counted["tokens"]
  assert abs(namespace["newest_s"] - time.time()) < 600
  assert re.search(r"default .* ago|default .* now", cache("list", "--cache-dir", directory).stdout)
  assert cache("gc", "--cache-dir", directory).returncode == 0
  (kept,) = json.loads(cache("stat", "--json", "--cache-dir", directory).stdout)["models"]
  assert kept["tokens"] == counted["tokens"], "control: all of it is alive"
  nothing = cache("purge", "--scope", "somebody", "--cache-dir", directory)
  assert nothing.returncode == 0 and "nothing of the scope 'somebody'" in nothing.stdout
  gone = cache("purge", "--scope", "default", "--cache-dir", directory)
  assert gone.returncode == 0 and f"{model}" in gone.stdout, gone.stderr
  assert json.loads(cache("list", "--json", "--cache-dir", directory).stdout)["models"][0]["namespaces"] == []
  with serve(directory) as server:
    assert ask(server)["timings"]["cached"]["disk"] == 0


def test_purge_of_a_server_reaches_the_disk(copy):
  directory, _ = copy
  with serve(directory) as server:
    purged = httpx.post(f"{server.url}/v1/cache/purge", json={}).json()["purged"]
    assert purged["disk_blocks"] > 0
    assert ask(server)["timings"]["cached"]["disk"] == 0
    told = cache("stat", "--url", server.url)
    assert told.returncode == 0 and re.search(r"^disk +[\d,]+ blocks", told.stdout, re.M)


@pytest.mark.parametrize("command", [["stat"], ["list"], ["verify"], ["gc"], ["purge", "--scope", "default"]])
def test_nothing_is_no_error(command, tmp_path):
  missing, empty = tmp_path / "missing", tmp_path / "empty"
  empty.mkdir()
  for directory, word in ((missing, "does not exist"), (empty, "is empty")):
    told = cache(*command, "--cache-dir", directory)
    assert told.returncode == 0 and word in told.stdout, told.stderr
    assert json.loads(cache(*command, "--json", "--cache-dir", directory).stdout)["models"] == []
  assert not missing.exists(), "it is not made by looking for it"


def dry_run(*arguments, **environment):
  done = subprocess.run([servers.REPRISE, "serve", str(servers.SMOLLM), "--dry-run", "--json", "--port", "0", *arguments],
                        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
                        env=os.environ | environment)
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout)


def test_the_dry_run_says_where_and_how_much(tmp_path):
  default = dry_run(XDG_CACHE_HOME=str(tmp_path))
  assert default["disk"]["directory"] == str(tmp_path / "reprise" / "kv") and default["disk"]["format"] == "raw"
  assert 0 < default["disk"]["bytes_max"] <= 100_000_000_000 and "default" in default["disk"]["from"]
  assert any(part["component"] == "disk index" for part in default["memory"]["components"])
  assert not (tmp_path / "reprise").exists(), "nothing is made"
  asked = dry_run("--cache-dir", str(tmp_path / "mine"), "--cache-disk", "3GiB", "--cache-format", "compressed")
  assert asked["disk"] == {"directory": str(tmp_path / "mine"), "bytes_max": 3 << 30, "from": "--cache-disk",
                           "format": "compressed", "held_bytes": 0}
  off = dry_run("--cache-disk", "off")
  assert off["disk"] == {"off": "--cache-disk off"} and off["warnings"] == []
  assert "disk cache" in [line["name"] for line in off["off"]]


def test_a_place_that_cannot_be_had_is_a_warning(tmp_path):
  (tmp_path / "file").write_text("")
  banner = dry_run("--cache-dir", str(tmp_path / "file" / "kv"))
  assert "is not a directory" in banner["warnings"][0] and "off" in banner["disk"]
  with servers.Server(servers.SMOLLM, "--context", "1024", "--cache-dir", str(tmp_path / "file" / "kv")) as server:
    assert text(ask(server, {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2})) and server.disk is None
    assert stats(server)["tiers"] == {}
