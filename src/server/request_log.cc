#include "server/request_log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/json.h"

namespace reprise {
namespace {

constexpr char kRequestLogger[] = "request";  // its messages are JSON objects already

// A log's line is one line: names that a client chose are quoted where they could end it or look like more.
std::string Plain(const std::string& name) {
  const bool plain = !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isgraph(c) != 0 && c != '"' && c != '=';
  });
  return plain ? name : Dump(Json(name));
}

class JsonLines : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    spdlog::memory_buf_t time;
    time_.format(message, time);
    const auto level = spdlog::level::to_string_view(message.level);
    Json line = {{"time", std::string(time.data(), time.size())}, {"level", std::string(level.data(), level.size())}};
    const std::string_view payload(message.payload.data(), message.payload.size());
    if (std::string_view(message.logger_name.data(), message.logger_name.size()) == kRequestLogger) {
      line.update(Json::parse(payload, nullptr, /*allow_exceptions=*/false));
    } else {
      line["message"] = std::string(payload);
    }
    const std::string text = Dump(line) + "\n";
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<JsonLines>(); }

 private:
  spdlog::pattern_formatter time_{"%Y-%m-%dT%H:%M:%S.%e%z", spdlog::pattern_time_type::local, ""};
};

// Null: text.
std::shared_ptr<spdlog::logger>& JsonRequestLogger() {
  static std::shared_ptr<spdlog::logger> logger;
  return logger;
}

}  // namespace

void SetLogFormat(LogFormat format) {
  JsonRequestLogger() = nullptr;
  if (format == LogFormat::kText) return;
  spdlog::set_formatter(std::make_unique<JsonLines>());
  JsonRequestLogger() = spdlog::default_logger()->clone(kRequestLogger);
}

void LogRequest(const RequestLine& line) {
  if (const auto& logger = JsonRequestLogger()) {
    Json fields = {{"id", line.id},
                   {"tenant", line.tenant},
                   {"model", line.model},
                   {"endpoint", line.endpoint},
                   {"status", line.status},
                   {"in", line.prompt_tokens},
                   {"reused", line.reused_tokens},
                   {"disk", line.disk_tokens},
                   {"computed", line.computed_tokens},
                   {"miss", line.miss.empty() ? Json(nullptr) : Json(line.miss)},
                   {"out", line.generated_tokens},
                   {"queue_ms", line.queue_ms},
                   {"first_ms", line.first_token_ms},
                   {"ms", line.total_ms},
                   {"end", line.reason}};
    if (!line.prefix_ids.empty()) {  // the names of recorded traces
      const auto now = std::chrono::system_clock::now().time_since_epoch();
      fields["timestamp"] = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
      fields["input_length"] = line.prompt_tokens;
      fields["output_length"] = line.generated_tokens;
      fields["hash_ids"] = line.prefix_ids;
    }
    return logger->info("{}", Dump(fields));
  }
  spdlog::info(
      "{} tenant={} model={} endpoint={} status={} in={} reused={} disk={} computed={} miss={} out={} queue_ms={:.1f} "
      "first_ms={:.1f} ms={:.1f} end={}",
      line.id, Plain(line.tenant), Plain(line.model), line.endpoint, line.status, line.prompt_tokens,
      line.reused_tokens, line.disk_tokens, line.computed_tokens, line.miss.empty() ? "-" : line.miss,
      line.generated_tokens, line.queue_ms, line.first_token_ms, line.total_ms, line.reason);
}

void LogPrompt(std::string_view id, std::string_view prompt) {
  const std::string name(id);
  if (const auto& logger = JsonRequestLogger()) {
    return logger->info("{}", Dump(Json({{"id", name}, {"prompt", std::string(prompt)}})));
  }
  spdlog::info("{} prompt={}", name, Dump(Json(std::string(prompt))));
}

}  // namespace reprise
