#include "server/server.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "server/api.h"
#include "server/http_server.h"
#include "server/prompt_builder.h"
#include "server/reply.h"

namespace reprise {
namespace {

constexpr uint32_t kFlushMs = 1000;  // after the last token: for the client to take what is left

// Of one connection, idle: the object, its socket in the event loop, the map's node.
constexpr uint64_t kConnectionBytes = 4 << 10;
// Of one generation: reply, events under way, its share of the queues.
constexpr uint64_t kRequestBytes = 16 << 10;
// Of a grammar while it is compiled: up to 31 bytes for each byte of large schemas, measured, of which a request may
// have 320 KiB. Smaller ones may take more for each byte, and less in all.
constexpr uint64_t kGrammarBytes = 12 << 20;
// A parsed JSON value at worst: a member of an object with a short key, in a vector that just doubled.
constexpr uint64_t kJsonValueBytes = 128;

std::optional<Digest> RandomKey() {
  std::random_device random;
  Digest key;
  for (uint8_t& byte : key.bytes) byte = static_cast<uint8_t>(random());
  return key;
}

}  // namespace

struct Server::Impl {
  explicit Impl(const ServerOptions& options)
      : api(std::make_unique<Api>(ApiOptions{.any_model = options.any_model,
                                             .log_prompts = options.log_prompts,
                                             .trace_key = options.log_traces ? RandomKey() : std::nullopt,
                                             .api_keys = options.api_keys,
                                             .cors_origins = options.cors_origins,
                                             .limits = options.limits})) {}

  std::unique_ptr<Api> api;  // null: stopped
  std::unique_ptr<HttpServer> http;
  EngineInterface* engine = nullptr;
};

Server::Server() = default;
Server::~Server() { Stop(0); }

uint64_t Server::Footprint(const ServerLimits& limits, uint32_t context_max) {
  const uint64_t connection = kConnectionBytes + 2 * uint64_t{limits.header_bytes_max};
  const uint64_t request = kRequestBytes + limits.stream_buffer_bytes;
  const uint64_t parsing = JsonValuesMax(context_max) * kJsonValueBytes;
  return limits.connections_max * connection + limits.requests_max * request +
         std::max(limits.bodies_bytes_max, limits.body_bytes_max) +
         kRequestThreads * (parsing + kGrammarBytes + EncodeBytesMax(context_max) * kEncodeBytesPerByte) +
         limits.grammars_bytes_max + limits.replies_bytes_max + kLogprobsMax * kLogprobBytes;
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  std::unique_ptr<Server> server(new Server);
  server->impl_ = std::make_unique<Impl>(options);
  auto http = HttpServer::Start(options.host, options.port, options.limits, *server->impl_->api);
  if (!http.ok()) return http.status();
  server->impl_->http = *std::move(http);
  return server;
}

void Server::Attach(EngineInterface& engine, const TextCodec& codec, std::vector<std::string> model_names) {
  impl_->engine = &engine;
  const auto queue = impl_->http->queue();
  ServedModel model{&engine, &codec, std::move(model_names)};
  queue->Post([api = impl_->api.get(), queue, model = std::move(model)] {
    api->SetQueue(queue);
    api->Attach(model);
  });
}

uint16_t Server::port() const { return impl_->http->port(); }
uint32_t Server::connections_max() const { return impl_->http->connections_max(); }

void Server::Stop(uint32_t deadline_ms) {
  if (impl_ == nullptr || impl_->api == nullptr) return;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(deadline_ms);
  if (impl_->http != nullptr) {
    impl_->http->queue()->Post([api = impl_->api.get()] { api->Drain(); });
    if (impl_->engine != nullptr) impl_->engine->Drain(deadline_ms);
    // The engine's last events are on their way through the I/O thread.
    const auto patience = deadline + std::chrono::milliseconds(kFlushMs);
    while (impl_->api->active() > 0 && std::chrono::steady_clock::now() < patience) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    impl_->http->Stop(kFlushMs);
  }
  impl_->api.reset();  // joins the request threads, so nothing uses engine and codec any more
}

}  // namespace reprise
