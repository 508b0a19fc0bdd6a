// The named workloads of `reprise bench`, each against one server or two in turn.
//
// Threads: one. Errors: those of HttpClient.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace reprise {

// A server that is measured. Peers speak llama-server's dialect of /v1/completions.
struct BenchTarget {
  std::string name;
  std::string url;
  bool peer = false;
};

struct WorkloadOptions {
  uint32_t vocab_size = 0;  // prompts are random token ids
  uint32_t prompt_tokens = 512;
  uint32_t reply_tokens = 64;
  uint32_t depth = 16;  // decode: tokens of context before the reply
  uint32_t shared_tokens = 1500;
  uint32_t clients = 8;
  uint32_t repeat = 5;
  uint64_t seed = 1;
};

// One figure of one workload: the targets' values of each repetition, in turn.
struct WorkloadResult {
  std::string name;                         // "prefill 512"
  std::string unit;                         // "tok/s" (more is better) or "ms" (less is better)
  std::vector<std::vector<double>> values;  // [targets][repeat]
};

std::vector<std::string> WorkloadNames();  // prefill decode repeat shared-prefix
absl::StatusOr<std::vector<WorkloadResult>> RunWorkload(const std::string& name,
                                                        const std::vector<BenchTarget>& targets,
                                                        const WorkloadOptions& options);

double Median(std::vector<double> values);

}  // namespace reprise
