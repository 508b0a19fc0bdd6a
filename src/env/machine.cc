#include "env/machine.h"

#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

namespace reprise {
namespace {

// The value of a line "Name:   123 kB" or "Name : text".
std::string Field(const char* path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, name.size(), name) != 0) continue;
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const size_t start = line.find_first_not_of(" \t", colon + 1);
    return start == std::string::npos ? "" : line.substr(start);
  }
  return "";
}

uint64_t Kilobytes(const std::string& field) { return std::strtoull(field.c_str(), nullptr, 10) * 1024; }

// The first line as a number; 0 for "max", no file, or v1's "no limit" (about 2^63).
uint64_t Limit(const char* path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return 0;
  const uint64_t limit = std::strtoull(line.c_str(), nullptr, 10);
  return limit >= (1ull << 60) ? 0 : limit;
}

}  // namespace

MachineInfo ReadMachineInfo() {
  MachineInfo info;
  info.memory_total_bytes = Kilobytes(Field("/proc/meminfo", "MemTotal"));
  info.memory_available_bytes = Kilobytes(Field("/proc/meminfo", "MemAvailable"));
  info.memory_limit_bytes = Limit("/sys/fs/cgroup/memory.max");
  if (info.memory_limit_bytes == 0) info.memory_limit_bytes = Limit("/sys/fs/cgroup/memory/memory.limit_in_bytes");
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof(cores), &cores) == 0) info.cores = std::max(1, CPU_COUNT(&cores));
  info.cpu = Field("/proc/cpuinfo", "model name");
  utsname name{};
  if (uname(&name) == 0) info.system = std::string(name.sysname) + " " + name.release;
  return info;
}

uint64_t DefaultMemoryBytes(const MachineInfo& machine) {
  const auto share = [](uint64_t bytes, uint64_t percent) { return bytes / 100 * percent; };
  const bool limited = machine.memory_limit_bytes > 0 && machine.memory_limit_bytes < machine.memory_total_bytes;
  const uint64_t wanted = limited ? share(machine.memory_limit_bytes, 90) : share(machine.memory_total_bytes, 50);
  return std::min(wanted, share(machine.memory_available_bytes, 90));
}

uint64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace reprise
