// What machine this is: how much memory and how many cores the process may use, and what to print above
// a benchmark.
//
// Threads: any. Errors: none; what the system does not tell is 0 or empty.
#pragma once

#include <cstdint>
#include <string>

namespace reprise {

struct MachineInfo {
  uint64_t memory_total_bytes = 0;      // of the machine
  uint64_t memory_available_bytes = 0;  // free or reclaimable now
  uint64_t memory_limit_bytes = 0;      // of the control group (v2 or v1); 0: none
  uint32_t cores = 1;                   // that this process may run on
  std::string cpu;                      // model name
  std::string system;                   // kernel name and release
};
MachineInfo ReadMachineInfo();

// What a process may take by default: 90 % of its control group's limit, else half of the machine, and
// never more than 90 % of what is available now.
uint64_t DefaultMemoryBytes(const MachineInfo& machine);

// Resident bytes of this process now; 0 if unknown.
uint64_t ResidentBytes();

}  // namespace reprise
