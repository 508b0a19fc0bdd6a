#include "cli/model_open.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "model/adapter.h"
#include "model/gguf.h"
#include "model/model_file.h"

namespace reprise {
namespace {

namespace fs = std::filesystem;

constexpr size_t kNamesShown = 5;

// "a.gguf, b.gguf", or nothing.
std::string GgufFilesOf(const fs::path& directory) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator it(directory.empty() ? "." : directory, error), end; !error && it != end;
       it.increment(error))
    if (it->path().extension() == ".gguf") names.push_back(it->path().filename());
  std::sort(names.begin(), names.end());
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kNamesShown); ++i) absl::StrAppend(&text, i == 0 ? "" : ", ", names[i]);
  if (names.size() > kNamesShown) absl::StrAppend(&text, " and ", names.size() - kNamesShown, " more");
  return text;
}

absl::Status CheckPath(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) {
    const fs::path directory = fs::path(path).parent_path();
    const bool directory_exists = directory.empty() || fs::is_directory(directory, error);
    const std::string where = directory.empty() ? "this directory" : directory.string();
    const std::string names = GgufFilesOf(directory);
    return absl::NotFoundError(absl::StrCat(path, ": no such file; ",
                                            !directory_exists ? absl::StrCat("there is no directory ", where, " either")
                                            : names.empty()   ? absl::StrCat(where, " holds no .gguf file")
                                                              : absl::StrCat(where, " holds ", names)));
  }
  if (fs::is_directory(status))
    return absl::InvalidArgumentError(absl::StrCat(path, " is a directory; give one GGUF file of it: ",
                                                   GgufFilesOf(path).empty() ? "it holds none" : GgufFilesOf(path)));
  if (!fs::is_regular_file(status)) return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::PermissionDeniedError(absl::StrCat(path, " cannot be read by this user; chmod +r lets it"));
  char magic[4] = {};
  file.read(magic, sizeof(magic));
  if (std::string_view(magic, sizeof(magic)) == "GGUF") return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      path, file.gcount() == 0 ? " is empty" : " is not a GGUF file: it does not begin with GGUF",
      "; safetensors and PyTorch models have to be converted first (llama.cpp's convert_hf_to_gguf.py), a page or "
      "pointer file in its place has to be downloaded again"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelDescription>> OpenModel(const std::string& path, ElementType kv_type,
                                                            const std::vector<AdapterOptions>& adapters) {
  const absl::Status checked = CheckPath(path);
  if (!checked.ok()) return checked;
  auto model = ModelDescription::Read(path, {.key_type = kv_type, .value_type = kv_type});
  if (model.ok()) {
    absl::StatusOr<std::vector<AdapterDescription>> read = ReadAdapters(adapters, **model);
    if (!read.ok())
      return absl::Status(read.status().code(), absl::StrCat("--lora: ", std::string(read.status().message())));
    (*model)->adapters = *std::move(read);
    return model;
  }
  std::error_code error;
  const uint64_t bytes = fs::file_size(path, error);
  const std::string message(model.status().message());
  if (absl::IsInvalidArgument(model.status()))
    return absl::DataLossError(absl::StrCat(path, ": ", message, "\nThe file (", HumanBytes(bytes),
                                            ") is damaged or incomplete: download it again, and compare its size and "
                                            "SHA-256 with the publisher's"));
  if (absl::IsUnimplemented(model.status()))
    return absl::UnimplementedError(
        absl::StrCat(path, ": ", message, "\ndocs/models.md lists the models that are supported"));
  return absl::Status(model.status().code(), absl::StrCat(path, ": ", message));
}

bool HasChatTemplate(const std::string& path) {
  const auto file = ModelFile::Open(path);
  if (!file.ok()) return false;
  const auto gguf = Gguf::Parse(**file);
  return gguf.ok() && gguf->Find("tokenizer.chat_template") != nullptr;
}

std::string ModelStem(const std::string& path) {
  const std::string file = path.substr(path.find_last_of('/') + 1);
  const size_t dot = file.rfind(".gguf");
  return dot == std::string::npos || dot == 0 ? file : file.substr(0, dot);
}

}  // namespace reprise
