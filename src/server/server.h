// The HTTP server: OpenAI's completions over an engine, on one I/O thread and two request threads.
//
// It listens before the model is loaded, so a busy port costs no load, and /health answers meanwhile;
// Attach opens it for requests.
//
//   auto server = Server::Start(options);          // a typed error when the address cannot be had
//   (*server)->Attach(engine, codec, {"smollm2"});  // /ready turns to 200
//   ...
//   (*server)->Stop(10'000);
//
// Ownership: engine and codec must outlive Stop (or the destructor, which is Stop(0)).
// Threads:   all methods from any thread, one at a time. Everything a client can make expensive (JSON,
//            tokenising) runs on the request threads; the I/O thread only moves bytes and events.
// Errors:    Start: InvalidArgument (host), AlreadyExists (port busy), PermissionDenied (port below 1024),
//            each saying what to do. Clients get errors as docs/http.md lists them.
// Design:    DESIGN 10, 11; docs/http.md; docs/decisions/0005-http-library.md
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ledger.h"
#include "engine/engine.h"
#include "server/request_log.h"
#include "server/server_limits.h"
#include "server/text_codec.h"

namespace reprise {

struct ServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8080;    // 0: any free one, see port()
  bool any_model = false;  // every `model` of a request is taken, and echoed
  // Any of these must come as `Authorization: Bearer KEY`, but for /health, /ready and OPTIONS; empty: none is needed.
  std::vector<std::string> api_keys;
  // Web pages whose scripts may use the server besides those of this machine ("https://chat.example.org"); "*": all.
  std::vector<std::string> cors_origins;
  bool log_prompts = false;  // into the log, at level info
  bool log_traces = false;   // prefix ids into the JSON log, for `reprise bench trace`
  ServerLimits limits;
};

class Server {
 public:
  // What the server's buffers take at worst, with prompts of `context_max` tokens.
  static uint64_t Footprint(const ServerLimits& limits, uint32_t context_max);

  // Binds and listens; /health answers, /ready is 503, completions are refused with `loading`.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options);
  ~Server();

  // Opens the server for requests. `model_names`: the file stem first, then the aliases; not empty.
  void Attach(EngineInterface& engine, const TextCodec& codec, std::vector<std::string> model_names);

  uint16_t port() const;
  uint32_t connections_max() const;  // the limit, lowered if the process may not open as many files

  // Refuses new requests (503 shutting_down), drains the engine for up to `deadline_ms`, sends what is
  // left to send, closes every connection and joins the threads. Blocks. The second call is a no-op.
  void Stop(uint32_t deadline_ms);

 private:
  Server();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace reprise
