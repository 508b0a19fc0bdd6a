#!/usr/bin/env python3
"""Tests of tidy.py: each rule lets a clean tree pass and stops the thing it is there for."""

import pathlib
import tempfile
import unittest

import tidy

LAYERS = """# rank folder may include
0 base
1 env   base
2 block base env
3 model base env block
4 planner base model/batch.h
"""


class TidyTest(unittest.TestCase):

  def setUp(self):
    self.directory = tempfile.TemporaryDirectory()
    self.addCleanup(self.directory.cleanup)
    self.root = pathlib.Path(self.directory.name)
    self.write("src/layers.txt", LAYERS)
    self.write("src/base/ids.h", "// Ids.\n#pragma once\n")
    self.write("src/block/pool.h", '// A pool.\n#pragma once\n#include <vector>\n#include "base/ids.h"\n')
    self.write("src/block/pool.cc", '#include "block/pool.h"\n')
    self.write("src/block/pool_test.cc", '#include "block/pool.h"\n#include "env/clock.h"\n')
    self.write("src/base/sizes.h",
               '// Sizes.\n#pragma once\n#include <span>\n#include "absl/status/status.h"\n#include "base/ids.h"\n')
    self.write("src/public_headers.txt", "# Public.\nbase/sizes.h\nbase/ids.h\n")

  def write(self, path, text):
    target = self.root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")

  def violations(self):
    checker = tidy.Tidy(self.root)
    clean = checker.run()
    self.assertEqual(clean, not checker.violations)
    return checker.violations

  def assert_only(self, *expected):
    found = self.violations()
    self.assertEqual(len(found), len(expected), found)
    for one, part in zip(found, expected):
      self.assertIn(part, one)

  def test_clean_tree_passes(self):
    self.assert_only()

  def test_includes_look_down_only(self):
    self.write("src/block/pool.cc", '#include "block/pool.h"\n#include "model/model.h"\n')
    self.assert_only("src/block/pool.cc:2: layers: block may not include model/model.h")

  def test_equal_rank_and_unlisted_lower_rank_are_refused(self):
    self.write("src/planner/plan.cc", '#include "env/clock.h"\n')
    self.assert_only("planner may not include env/clock.h")

  def test_single_headers_can_be_permitted(self):
    self.write("src/planner/plan.cc", '#include "model/batch.h"\n')
    self.assert_only()
    self.write("src/planner/plan.cc", '#include "model/weights.h"\n')
    self.assert_only("planner may not include model/weights.h")

  def test_tests_may_use_any_lower_rank_but_no_higher_one(self):
    self.write("src/planner/plan.cc", "")
    self.write("src/planner/plan_test.cc", '#include "block/pool.h"\n')
    self.assert_only()
    self.write("src/block/pool_test.cc", '#include "planner/plan.h"\n')
    self.assert_only("block may not include planner/plan.h")

  def test_unknown_folder(self):
    self.write("src/utils/strings.cc", "")
    self.assert_only("folder utils is not in src/layers.txt")

  def test_layers_file_itself_must_look_down(self):
    self.write("src/layers.txt", LAYERS.replace("1 env   base", "1 env   base block"))
    self.assert_only("env may include block, which is not of a lower rank")

  def test_public_headers_show_no_third_party(self):
    self.write("src/base/sizes.h", '// Sizes.\n#pragma once\n#include "llama.h"\n#include <boost/asio.hpp>\n')
    self.assert_only("llama.h is not for the public interface", "boost/asio.hpp is not for the public interface")

  def test_public_headers_include_public_headers(self):
    self.write("src/public_headers.txt", "base/sizes.h\n")
    self.assert_only("src/base/sizes.h:5: public-header: base/ids.h is not for the public interface")

  def test_public_headers_exist_under_names_of_their_own(self):
    self.write("src/public_headers.txt", "base/sizes.h\nbase/ids.h\nblock/ids.h\n")
    self.assert_only("ids.h is there twice", "there is no block/ids.h", "ids.h is there twice")

  def test_at_most_fifteen_public_headers(self):
    def list_headers(count):
      for i in range(count):
        self.write(f"src/base/h{i}.h", "// One.\n#pragma once\n")
      self.write("src/public_headers.txt", "".join(f"base/h{i}.h\n" for i in range(count)))

    list_headers(15)
    self.assert_only()
    list_headers(16)
    self.assert_only("public headers: 16, at most 15")

  def test_headers_begin_with_a_contract(self):
    self.write("src/base/ids.h", "#pragma once\n")
    self.assert_only("begins without its contract")
    self.write("src/base/ids.h", "// Ids.\n")
    self.assert_only("no #pragma once")

  def test_markers(self):
    for marker in ("TODO", "FIXME"):
      self.write("docs/a.md", f"text\n{marker}: later\n")
      self.assert_only(f"docs/a.md:2: marker: {marker}")
    self.write("docs/a.md", "mastodon\n")
    self.assert_only()

  def test_machine_paths_and_hosts(self):
    self.write("docs/a.md", "see " + "/home" + "/me/x and https://" + "pypi" + ".org\n")
    self.assert_only("machine-path", "host")
    self.write("docs/a.md", "~/.cache/reprise, src/home/x, $HOME/work/x and /usr/lib\n")
    self.assert_only()

  def test_pages_that_are_cited_exist(self):
    self.write("src/block/pool.cc", "// See docs/pool.md.\n")
    self.write("docs/a.md", "[pool](pool.md#slots), [web](https://example.org/x.md), [up](../src/block/pool.h)\n")
    self.assert_only("docs/a.md:1: link: there is no pool.md", "src/block/pool.cc:1: link: there is no docs/pool.md")
    self.write("docs/pool.md", "Pool.\n")
    self.assert_only()

  def test_commented_out_code(self):
    for line in ("// x = y + 1;", "  // foo(bar);", "// if (a) {", "// #include <x>", "// return 3;", "// }",
                 "// pool->Free(slot);", "// std::vector<int> v = {1};"):
      self.write("src/block/pool.cc", f"{line}\n")
      self.assert_only("commented-code")
    for line in ("// Frees it; the caller keeps the pin.", "// x = y + 1 holds since both are even.", "//   Foo foo = Bar();",
                 "// [kv_heads, block_tokens]", "// See Free(slot)."):
      self.write("src/block/pool.cc", f"{line}\n")
      self.assert_only()

  def test_siblings_share_a_stem(self):
    self.write("src/block/table_avx2.cc", "")
    self.assert_only("nothing beside it shares the stem table")
    self.write("src/block/table.h", "// A table.\n#pragma once\n")
    self.assert_only()
    self.write("src/block/pool_random_fuzz.cc", "")
    self.assert_only()
    self.write("src/block/theme_test.cc", "")
    checker = tidy.Tidy(self.root)
    self.assertTrue(checker.run())
    self.assertIn("shares the stem theme", checker.second_look[0])

  def test_sizes_are_reported_then_refused(self):
    self.write("src/block/pool.cc", "int x;\n" * 700)
    checker = tidy.Tidy(self.root)
    self.assertTrue(checker.run())
    self.assertEqual(len(checker.second_look), 1)
    self.write("src/block/pool.cc", "int x;\n" * 901)
    self.assert_only("lines: 901, at most 900")

  def test_long_functions(self):
    self.write("src/block/pool.cc", "void F() {\n" + "  g();\n" * 250 + "}\n")
    self.assert_only("function at line 1: lines: 252, at most 200")

  def test_readme_stays_short(self):
    self.write("README.md", "x\n" * 201)
    self.assert_only("lines: 201, at most 200")

  def test_folders_are_one_level_deep(self):
    self.write("src/block/deep/x.h", "// X.\n#pragma once\n")
    self.assert_only("folders are one level deep")


if __name__ == "__main__":
  unittest.main()
