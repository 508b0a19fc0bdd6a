#include "server/request_log.h"

#include <spdlog/spdlog.h>

namespace reprise {

void LogRequest(const RequestLine& line) {
  spdlog::info("{} in={} reused={} computed={} out={} queue_ms={:.1f} first_ms={:.1f} ms={:.1f} end={}", line.id,
               line.prompt_tokens, line.reused_tokens, line.computed_tokens, line.generated_tokens, line.queue_ms,
               line.first_token_ms, line.total_ms, line.reason);
}

}  // namespace reprise
