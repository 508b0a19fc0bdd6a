#!/usr/bin/env python3
"""The house rules that a machine can check (docs/hacking.md). A ctest, with tests of its own in tidy_test.py.

  tools/tidy.py [--report] [ROOT]

Violations go to stderr as `path:line: rule: what`, and make the exit status 1. --report also lists the sizes that are
worth a second look; those never fail.
"""

import os
import pathlib
import re
import sys

# Worth a second look / refused.
HEADER_LINES = (300, 900)
SOURCE_LINES = (600, 900)
FUNCTION_LINES = (70, 200)
FOLDER_FILES = (20, 60)
README_LINES_MAX = 200
PUBLIC_HEADERS_MAX = 15

# Stems that hold no code by themselves: role suffixes of a sibling.
ROLES = ("_test", "_fuzz", "_bench", "_avx2", "_avx512")

INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]')
# A comment that is a statement: ends like one and is not prose.
COMMENTED_CODE = re.compile(
    r"^\s*//\s*(?:(?:if|for|while|switch)\s*\(.*\)\s*\{?|return\b[^.]*;|#\s*include\b.*|[A-Za-z_][\w:<>,*&\[\]. ]*\s*[+\-*/|&]?="
    r"[^=].*;|[A-Za-z_][\w:.]*(?:->[\w]+)*\([^)]*\);|\}|else\b.*\{)\s*$")
MARKERS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
MACHINE_PATHS = re.compile(r"(?<![\w.<$}~-])/(?:root|work|home|tmp|Users)/[\w.-]+")
HOSTS = re.compile(r"\b(?:pypi|pythonhosted|huggingface|npmjs|crates|artifactory|nexus)\.(?:org|co|io|com|net)\b", re.I)
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
CITED_PAGE = re.compile(r"(?<![\w/.])(?:docs|bench)/[\w/.-]+\.md\b")
# Headers of others that the public interface may show.
PUBLIC_INCLUDES = re.compile(r"^(?:absl/(?:status/(?:status|statusor)|types/span)\.h|[a-z_0-9]+)$")
SOURCE_SUFFIXES = (".h", ".cc")
TEXT_SUFFIXES = (".h", ".cc", ".py", ".sh", ".md", ".txt", ".cmake", ".json", "")


class Layers:
  """src/layers.txt: rank, folder and what the folder may include, besides itself."""

  def __init__(self, text):
    self.rank = {}
    self.allowed = {}
    self.errors = []
    for number, line in enumerate(text.splitlines(), 1):
      words = line.split("#")[0].split()
      if not words:
        continue
      self.rank[words[1]] = int(words[0])
      self.allowed[words[1]] = words[2:]
    for folder, allowed in self.allowed.items():
      for target in allowed:
        below = self.rank.get(target.split("/")[0])
        if below is None or below >= self.rank[folder]:
          self.errors.append(f"{folder} may include {target}, which is not of a lower rank")

  def permits(self, folder, target):
    """Whether a file in `folder` may include "x/y.h"."""
    to = target.split("/")[0]
    return to == folder or to in self.allowed[folder] or target in self.allowed[folder]


class Tidy:
  """Reads a tree and collects what is against the rules."""

  def __init__(self, root):
    self.root = pathlib.Path(root)
    self.violations = []
    self.second_look = []

  def run(self):
    layers_path = self.root / "src" / "layers.txt"
    layers = Layers(layers_path.read_text(encoding="utf-8"))
    self.public = self.read_public_headers()
    for error in layers.errors:
      self.violation(layers_path, 0, "layers", error)
    for path in self.files():
      lines = path.read_text(encoding="utf-8").splitlines()
      self.check_text(path, lines)
      if path.suffix in SOURCE_SUFFIXES:
        self.check_source(path, lines)
        self.check_includes(path, lines, layers)
    self.check_folders(layers)
    return not self.violations

  def read_public_headers(self):
    """src/public_headers.txt: what is installed, flat, and so has names of its own."""
    path = self.root / "src" / "public_headers.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    headers = [line for line in lines if line and not line.startswith("#")]
    if len(headers) > PUBLIC_HEADERS_MAX:
      self.violation(path, 0, "size", f"public headers: {len(headers)}, at most {PUBLIC_HEADERS_MAX}")
    names = [header.split("/")[-1] for header in headers]
    for header, name in zip(headers, names):
      if not (self.root / "src" / header).exists():
        self.violation(path, 0, "public-header", f"there is no {header}")
      if names.count(name) > 1:
        self.violation(path, 0, "public-header", f"{name} is there twice")
    return headers

  def files(self):
    """Every text file of ours, in order."""
    for directory, folders, names in os.walk(self.root):
      here = pathlib.Path(directory)
      folders[:] = sorted(f for f in folders if f not in (".git", "build", "results", "__pycache__"))
      for name in sorted(names):
        path = here / name
        if path.suffix in TEXT_SUFFIXES and name not in ("LICENSE", ".clang-format", ".git"):
          yield path

  def violation(self, path, line, rule, what):
    where = f"{path.relative_to(self.root)}:{line}" if line else str(path.relative_to(self.root))
    self.violations.append(f"{where}: {rule}: {what}")

  def size(self, path, what, got, limits):
    look, refused = limits
    if got > refused:
      self.violation(path, 0, "size", f"{what}: {got}, at most {refused}")
    elif got > look:
      self.second_look.append(f"{path.relative_to(self.root)}: {what}: {got}, look twice above {look}")

  def check_text(self, path, lines):
    if path.name in ("tidy.py", "tidy_test.py"):
      return  # they spell out what is forbidden
    for number, line in enumerate(lines, 1):
      if match := MARKERS.search(line):
        self.violation(path, number, "marker", f"{match.group()}: do it, or write down why not in prose")
      if match := MACHINE_PATHS.search(line):
        self.violation(path, number, "machine-path", match.group())
      if match := HOSTS.search(line):
        self.violation(path, number, "host", match.group())
      for page in CITED_PAGE.findall(line):
        if not (self.root / page).exists():
          self.violation(path, number, "link", f"there is no {page}")
      for link in LINK.findall(line) if path.suffix == ".md" else []:
        if "://" not in link and not (path.parent / link).exists():
          self.violation(path, number, "link", f"there is no {link}")
    if path.name == "README.md" and len(lines) > README_LINES_MAX:
      self.violation(path, 0, "size", f"lines: {len(lines)}, at most {README_LINES_MAX}")

  def check_source(self, path, lines):
    self.size(path, "lines", len(lines), HEADER_LINES if path.suffix == ".h" else SOURCE_LINES)
    for number, line in enumerate(lines, 1):
      if COMMENTED_CODE.match(line) and not self.is_example(lines, number - 1):
        self.violation(path, number, "commented-code", line.strip())
    if path.suffix == ".h" and "#pragma once" not in lines:
      self.violation(path, 0, "header", "no #pragma once")
    if lines and path.suffix == ".h" and not lines[0].startswith("//"):
      self.violation(path, 1, "header", "begins without its contract: a comment that says what it is")
    self.check_functions(path, lines)

  @staticmethod
  def is_example(lines, at):
    """Code in a comment that is indented beyond its prose is an example."""
    return re.match(r"^\s*//\s{2,}\S", lines[at]) is not None

  def check_functions(self, path, lines):
    """A function of namespace scope: from the line that opens it to the brace in column 0."""
    start = None
    for number, line in enumerate(lines, 1):
      if start is None and re.match(r"^[A-Za-z_].*\)[^;]*\{\s*$", line) and not line.startswith("namespace"):
        start = number
      elif start is not None and line.startswith("}"):
        self.size(path, f"function at line {start}: lines", number - start + 1, FUNCTION_LINES)
        start = None

  def check_includes(self, path, lines, layers):
    relative = path.relative_to(self.root)
    public = str(relative.relative_to("src")) in self.public if relative.parts[0] == "src" else False
    folder = relative.parts[1] if relative.parts[0] == "src" else None
    if folder is not None and folder not in layers.rank:
      self.violation(path, 0, "layers", f"folder {folder} is not in src/layers.txt")
      return
    for number, line in enumerate(lines, 1):
      match = INCLUDE.match(line)
      if not match:
        continue
      quoted, target = match.group(1) == '"', match.group(2)
      if public and not PUBLIC_INCLUDES.match(target) and target not in self.public:
        self.violation(path, number, "public-header", f"{target} is not for the public interface")
      if folder is None or not quoted or target.split("/")[0] not in layers.rank or "/" not in target:
        continue
      test = path.stem.endswith(("_test", "_fuzz", "_bench"))
      if not layers.permits(folder, target) and not (test and layers.rank[target.split("/")[0]] < layers.rank[folder]):
        self.violation(path, number, "layers", f"{folder} may not include {target}")

  def check_folders(self, layers):
    for folder in layers.rank:
      directory = self.root / "src" / folder
      if not directory.is_dir():
        continue
      if any(p.is_dir() for p in directory.iterdir()):
        self.violation(directory, 0, "layout", "folders are one level deep")
      files = [p for p in directory.iterdir() if p.suffix in SOURCE_SUFFIXES]
      subjects = [p for p in files if not p.stem.endswith(ROLES)]
      self.size(directory, "files without roles", len(subjects), FOLDER_FILES)
      stems = {p.stem for p in subjects}
      for path in files:
        for role in ROLES:
          stem = path.stem.removesuffix(role)
          if stem == path.stem or self.has_sibling(stem, stems):
            continue
          if role == "_test":  # of a theme, not of a file
            self.second_look.append(f"{path.relative_to(self.root)}: nothing beside it shares the stem {stem}")
          else:
            self.violation(path, 0, "siblings", f"nothing beside it shares the stem {stem}")

  @staticmethod
  def has_sibling(stem, stems):
    """`pool_random` (a test's) has the siblings `pool`, `pool_random` and `pool_random_walk`."""
    return any(other == stem or other.startswith(stem + "_") or stem.startswith(other + "_") for other in stems)


def main(arguments):
  report = "--report" in arguments
  roots = [a for a in arguments if a != "--report"]
  tidy = Tidy(roots[0] if roots else pathlib.Path(__file__).resolve().parent.parent)
  clean = tidy.run()
  if report:
    print("\n".join(tidy.second_look))
  if not clean:
    print("\n".join(tidy.violations), file=sys.stderr)
  return 0 if clean else 1


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
