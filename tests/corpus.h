// Real text for tests: llama.cpp's own documentation, in one string, the same on every machine.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace reprise {

// REPRISE_TEXT_DIR: where llama.cpp was laid down.
inline std::string Corpus() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(REPRISE_TEXT_DIR))
    if (entry.path().extension() == ".md" && entry.file_size() >= 4096) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::string text;
  for (const auto& file : files) {
    std::ifstream in(file, std::ios::binary);
    text.append(std::istreambuf_iterator<char>(in), {});
  }
  return text;
}

}  // namespace reprise
