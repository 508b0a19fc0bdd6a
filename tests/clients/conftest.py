"""What the tests with real clients share. Run by ctest (label `clients`), or:

  tools/client_venv --run -m pytest tests/clients     # REPRISE_BINARY: another binary than build/release/reprise
"""

import os
import tempfile

import httpx
import openai
import pytest

import servers

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # nothing of these tests leaves the machine

# Nor does anything touch the cache directory of whoever runs them.
CACHE_HOME = tempfile.TemporaryDirectory()
os.environ["XDG_CACHE_HOME"] = CACHE_HOME.name

GOOD_KEY = "sk-test-good"


@pytest.fixture(scope="session")
def smollm():
  with servers.Server(servers.SMOLLM, "--alias", "small", "--alias", "gpt-4o-mini", "--context", "2048") as server:
    yield server


@pytest.fixture(scope="session")
def qwen():
  with servers.Server(servers.QWEN, "--context", "4096") as server:
    yield server


@pytest.fixture(scope="session")
def guarded(tmp_path_factory):
  """A server with API keys, another origin and a short queue."""
  keys = tmp_path_factory.mktemp("keys") / "keys"
  keys.write_text(f"# of the tests\n{GOOD_KEY}\nsk-test-second\n")
  keys.chmod(0o600)
  with servers.Server(servers.SMOLLM, "--context", "2048", "--api-key-file", str(keys), "--cors",
                      "https://app.example", "--sequences", "1", "--queue-requests", "1") as server:
    yield server


def client_of(server, key="any"):
  return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=120)


@pytest.fixture(scope="session")
def client(smollm):
  return client_of(smollm)


@pytest.fixture(scope="session")
def tool_client(qwen):
  return client_of(qwen)


@pytest.fixture(scope="session")
def http(smollm):
  """For what no client of OpenAI's sends."""
  with httpx.Client(base_url=smollm.url, timeout=120) as plain:
    yield plain
