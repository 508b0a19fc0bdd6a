// Every queue and buffer that a client can fill, and every wait that it can cause, has a limit here.
//
// Ownership: a value. Threads: any.
#pragma once

#include <cstdint>

namespace reprise {

struct ServerLimits {
  uint32_t connections_max = 1536;           // beyond: the longest idle one is closed, else 503
  uint32_t requests_max = 320;               // choices of replies at once, queued ones included; beyond: 429
  uint32_t header_bytes_max = 16 << 10;      // beyond: 431; pipelined bytes that wait have the same limit
  uint64_t body_bytes_max = 8 << 20;         // beyond: 413 body_too_large
  uint64_t bodies_bytes_max = 32 << 20;      // of all connections together; beyond: 429
  uint64_t grammars_bytes_max = 12 << 20;    // compiled schemas and tools of running requests; beyond: 429
  uint64_t replies_bytes_max = 16 << 20;     // collected for replies that are not streamed; beyond: 429
  uint32_t json_depth_max = 64;              // beyond: 400 invalid_json
  uint32_t stream_buffer_bytes = 128 << 10;  // of one stream, unsent; beyond: the request is cancelled
  uint32_t idle_ms = 120'000;                // a connection without a request
  uint32_t header_ms = 10'000;               // from the first byte of a request to the end of its header; 408
  uint32_t body_stall_ms = 10'000;           // between two reads of a body; 408
  uint32_t body_ms = 60'000;                 // the whole body; 408
  uint32_t write_stall_ms = 30'000;          // a reader that takes nothing
  uint32_t linger_ms = 2'000;                // after the last reply, until the client hangs up too
  uint32_t comment_ms = 9'000;               // a silent stream gets a comment line this often: within 10 s
};

}  // namespace reprise
