#!/usr/bin/env python3
"""reprise_kv as others get it: installed into a temporary prefix, found by find_package, built into the example.

  library_test.py SOURCE_DIR BUILD_DIR      reads CMAKE, CXX and GENERATOR from the environment
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

HEADERS_MAX = 15
EXAMPLE_LINES_MAX = 79
CMAKE = os.environ.get("CMAKE", "cmake")
CXX = os.environ.get("CXX", "c++")
EXPECTED = """\
0 of 28 tokens reused, hash H
  (copied 4 rows of a block)
28 of 29 tokens reused, hash H
token 20: tokens_differ, asked 9, cached 120
  (copied 4 rows of a block)
20 of 29 tokens reused, hash H
0 of 29 tokens reused, hash H
the same as computed from nothing
"""


def run(*command):
  """Standard output and error together, and the status."""
  done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
  return done.stdout, done.returncode


class Library(unittest.TestCase):
  source = build = None

  @classmethod
  def setUpClass(cls):
    cls.directory = tempfile.TemporaryDirectory()
    cls.root = pathlib.Path(cls.directory.name)
    cls.prefix = cls.root / "prefix"
    output, status = run(CMAKE, "--install", str(cls.build), "--prefix", str(cls.prefix), "--component", "kv")
    assert status == 0, output
    cls.headers = sorted((cls.prefix / "include" / "reprise").iterdir())

  @classmethod
  def tearDownClass(cls):
    cls.directory.cleanup()

  def must(self, *command):
    output, status = run(*command)
    self.assertEqual(status, 0, output)
    return output

  def configure(self, source, name, *arguments):
    return run(CMAKE, "-S", str(source), "-B", str(self.root / name), "-G", os.environ.get("GENERATOR", "Ninja"),
               f"-DCMAKE_CXX_COMPILER={CXX}", "-DCMAKE_BUILD_TYPE=Release", *arguments)

  def test_installs_the_library_and_nothing_else(self):
    where = {str(path.relative_to(self.prefix)) for path in self.prefix.rglob("*") if path.is_file()}
    strangers = [path for path in where
                 if not re.fullmatch(r"include/reprise/[a-z_]+\.h|lib[\w/-]*/(libreprise_kv\.a|cmake/reprise/[\w.-]+)"
                                     r"|share/doc/reprise/LICENSE", path)]
    self.assertEqual(strangers, [])
    self.assertIn("include/reprise/kv_cache.h", where)
    self.assertLessEqual(len(self.headers), HEADERS_MAX)

  def test_every_header_compiles_alone_and_without_warnings(self):
    for header in self.headers:
      with self.subTest(header=header.name):
        self.must(CXX, "-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-x", "c++",
                  f"-I{self.prefix / 'include'}", "-include", f"reprise/{header.name}", os.devnull)

  def test_headers_define_no_macros_and_name_nothing_outside_the_namespace(self):
    for header in self.headers:
      text = header.read_text(encoding="utf-8")
      self.assertNotRegex(text, r"(?m)^\s*#\s*define", header.name)
      opened = set(re.findall(r"(?m)^namespace ([\w:]+) \{", text))
      self.assertEqual(opened, {"reprise"}, header.name)

  def test_links_into_a_shared_object(self):
    archive = next(self.prefix.glob("lib*/**/libreprise_kv.a"))
    self.must(CXX, "-shared", "-o", str(self.root / "extension.so"), "-Wl,--whole-archive", str(archive),
              "-Wl,--no-whole-archive")

  def test_the_example_finds_builds_and_reuses(self):
    example = self.source / "examples" / "embed_kv"
    lines = (example / "embed_kv.cc").read_text(encoding="utf-8").splitlines()
    self.assertLessEqual(len(lines), EXAMPLE_LINES_MAX)
    output, status = self.configure(example, "example", f"-DCMAKE_PREFIX_PATH={self.prefix}",
                                    "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror")
    self.assertEqual(status, 0, output)
    self.must(CMAKE, "--build", str(self.root / "example"))
    output = self.must(str(self.root / "example" / "embed_kv"))
    self.assertEqual(re.sub(r"hash [0-9a-f]{16}", "hash H", output), EXPECTED)

  def test_without_the_library_the_example_is_not_configured(self):
    output, status = self.configure(self.source / "examples" / "embed_kv", "without")
    self.assertNotEqual(status, 0, output)
    self.assertIn("reprise", output)

  def test_configures_alone_without_llama_cpp(self):
    nowhere = f"-DREPRISE_LLAMA_DIR={self.root / 'nowhere'}"
    output, status = self.configure(self.source, "alone", "-DREPRISE_KV_ONLY=ON", nowhere)
    self.assertEqual(status, 0, output)
    output, status = self.configure(self.source, "all", nowhere)
    self.assertNotEqual(status, 0, output)
    self.assertIn("llama.cpp", output)

  def test_a_header_that_includes_what_is_not_public_is_refused(self):
    def install(headers):
      return run(CMAKE, f"-Dheaders={headers}", f"-Dsource_dir={self.source / 'src'}",
                 f"-Dstaging_dir={self.root / 'staging'}", "-Dinclude_dir=include",
                 f"-DCMAKE_INSTALL_PREFIX={self.root / 'other'}",
                 "-P", str(self.source / "cmake" / "install_headers.cmake"))

    output, status = install("base/geometry.h;base/ids.h")
    self.assertEqual(status, 0, output)
    output, status = install("base/geometry.h")
    self.assertNotEqual(status, 0, output)
    self.assertIn("base/ids.h", output)


if __name__ == "__main__":
  Library.source, Library.build = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
  unittest.main(argv=sys.argv[:1])
