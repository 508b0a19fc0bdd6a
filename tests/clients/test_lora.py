"""LoRA adapters from the command line to a reply: `--lora`, the banner, the field `lora`."""

import array
import random
import struct
import subprocess

import httpx
import pytest

import servers

LAYERS, WIDTH, RANK = 30, 576, 8  # SmolLM2-135M


def text(value):
  data = value.encode()
  return struct.pack("<Q", len(data)) + data


def write_adapter(path, seed, architecture="llama", width=WIDTH):
  """An adapter of Q and the attention's output, of random numbers."""
  generator = random.Random(seed)
  values = [text("general.type") + struct.pack("<I", 8) + text("adapter"),
            text("general.architecture") + struct.pack("<I", 8) + text(architecture),
            text("adapter.type") + struct.pack("<I", 8) + text("lora"),
            text("adapter.lora.alpha") + struct.pack("<If", 6, 16.0)]
  tensors, data = b"", b""
  for layer in range(LAYERS):
    for part in ("attn_q", "attn_output"):
      for half, dims, size in (("a", (width, RANK), 0.04), ("b", (RANK, width), 0.06)):
        tensors += text(f"blk.{layer}.{part}.weight.lora_{half}") + struct.pack("<IQQIQ", 2, *dims, 0, len(data))
        data += array.array("f", (generator.gauss(0, size) for _ in range(dims[0] * dims[1]))).tobytes()
  head = b"GGUF" + struct.pack("<IQQ", 3, LAYERS * 4, len(values)) + b"".join(values) + tensors
  path.write_bytes(head + bytes(-len(head) % 32) + data)
  return path


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
  folder = tmp_path_factory.mktemp("adapters")
  return write_adapter(folder / "law.gguf", 1), write_adapter(folder / "medicine.gguf", 2)


@pytest.fixture(scope="module")
def server(adapters):
  law, medicine = adapters
  with servers.Server(servers.SMOLLM, "--context", "2048", "--lora", str(law), "--lora", f"{medicine}:0.5") as server:
    yield server


def complete(server, **fields):
  body = {"prompt": "The river that runs through the old town is", "max_tokens": 12, "temperature": 0, **fields}
  return httpx.post(f"{server.url}/v1/completions", json=body, timeout=120)


def test_the_banner_has_adapters_and_their_memory(server):
  assert [(a["name"], a["rank"], a["scale"]) for a in server.banner["adapters"]] == [("law", 8, 1), ("medicine", 8, 0.5)]
  lines = {line["component"]: line["bytes"] for line in server.banner["memory"]["components"]}
  for adapter in server.banner["adapters"]:
    assert lines[f"adapter {adapter['name']}"] == adapter["bytes"] > 0
  assert server.banner["battery"]["checks"] > 0 and server.banner["battery"]["different"] == []


def test_a_request_chooses_and_shares_with_its_like(server):
  uses = [None, [], [{"name": "law"}], [{"name": "law", "scale": 3}], [{"name": "medicine"}, {"name": "law"}]]
  texts, prompts = [], []
  for lora in uses:
    first, second = complete(server, lora=lora).json(), complete(server, lora=lora).json()
    assert first["timings"]["cached"]["pool"] == 0, "no other adapters' state"
    assert second["timings"]["computed_n"] == 1, "the control: the same adapters'"
    assert first["choices"][0]["text"] == second["choices"][0]["text"]
    texts.append(first["choices"][0]["text"])
    prompts.append(first["timings"]["prompt_n"])
  assert len(set(prompts)) == 1 and len(set(texts)) > 2
  said = [{"name": "law", "scale": 1}, {"name": "medicine", "scale": 0.5}]
  assert complete(server, lora=said).json()["timings"]["computed_n"] == 1, "what a request gets that says nothing"


def test_receipts_name_adapters(server):
  lora = [{"name": "medicine", "scale": 2}]
  reply = complete(server, lora=lora, cache={"receipt": True}).json()
  (adapter,) = reply["prefix_cache_receipt"]["compatibility"]["adapters"]
  assert adapter["name"] == "medicine" and adapter["scale"] == 2 and adapter["revision"].startswith("sha256:")


def test_an_unknown_adapter_is_refused_with_the_loaded_ones(server):
  reply = complete(server, lora=[{"name": "cooking"}])
  error = reply.json()["error"]
  assert reply.status_code == 400 and error["code"] == "invalid_value" and error["param"] == "lora[0].name"
  assert "law, medicine" in error["message"]


@pytest.mark.parametrize("wrong, said", [({"architecture": "qwen2"}, "another family"), ({"width": 512}, "must be [576, 8]")])
def test_an_adapter_of_another_model_ends_the_start(tmp_path, wrong, said):
  path = write_adapter(tmp_path / "wrong.gguf", 1, **wrong)
  run = subprocess.run([servers.REPRISE, "serve", str(servers.SMOLLM), "--lora", str(path), "--dry-run"],
                       capture_output=True, text=True, timeout=60)
  assert run.returncode == 2 and said in run.stderr and str(path) in run.stderr
