#include "token/library_log.h"

#include <mutex>
#include <string_view>

#include "llama.h"
#include "log.h"
#include "spdlog/spdlog.h"

namespace reprise {
namespace {

thread_local LibraryErrors* current_errors = nullptr;

std::string Trimmed(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  return std::string(text);
}

}  // namespace

void KeepLibraryError(std::string text) {
  if (current_errors != nullptr && current_errors->first_.empty()) current_errors->first_ = std::move(text);
}

void RouteLibraryLog() {
  static std::once_flag once;
  std::call_once(once, [] {
    llama_log_set(
        [](ggml_log_level level, const char* text, void*) {
          const std::string line = Trimmed(text);
          if (line.empty()) return;
          if (level == GGML_LOG_LEVEL_ERROR) KeepLibraryError(line);
          spdlog::debug("llama.cpp: {}", line);
        },
        nullptr);
    common_log_set_verbosity_thold(-1);  // its common library logs on a thread of its own, to stderr
  });
}

LibraryErrors::LibraryErrors() : outer_(current_errors) { current_errors = this; }
LibraryErrors::~LibraryErrors() { current_errors = outer_; }

std::string LibraryErrors::first() const {
  if (first_.empty()) return "no reason given";
  const size_t after_function = first_.find(": ");
  return after_function == std::string::npos ? first_ : first_.substr(after_function + 2);
}

}  // namespace reprise
