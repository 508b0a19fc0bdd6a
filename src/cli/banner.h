// What a start comes to: every decision and limit with who made it, what is off and how to turn it on.
//
// Ownership: values. Threads: any. Errors: none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/disk_cache.h"
#include "engine/local_engine.h"

namespace reprise {

struct LimitLine {
  std::string name;
  uint64_t value = 0;
  std::string unit;  // "tokens", "requests", "bytes", "s", ...
  std::string from;  // "default; --sequences", "--context", "the open files (ulimit -n 1024)", ...
};

struct OffLine {
  std::string name;
  std::string meaning;  // what it is like now
  std::string flag;     // that turns it on; empty: not in this version
};

struct StartReport {
  const ModelDescription* model = nullptr;
  MemoryPlan plan;
  Isa isa = Isa::kPortable;
  uint32_t threads = 0;
  std::string threads_from;
  BatteryReport battery;
  std::string chat;  // "the model's own template", ...
  std::string address;
  std::vector<std::string> names;  // served as
  DiskChoice disk;
  std::vector<LimitLine> limits;
  std::vector<OffLine> off;
  std::vector<std::string> warnings;
};

// What was found in the cache directory once it was open; empty words, and null, without one.
struct OpenedDisk {
  LocalEngine::DiskStatus const* status = nullptr;
  TierUsage usage;
};
std::string OpenedDiskText(const OpenedDisk& disk);  // lines as BannerText's
std::string OpenedDiskJson(const OpenedDisk& disk);  // one line, without a line break

std::string BannerText(const StartReport& report);
std::string BannerJson(const StartReport& report);  // one object, indented, with a line break

}  // namespace reprise
