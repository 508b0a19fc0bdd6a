#include "cli/banner.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/bytes.h"
#include "base/text.h"
#include "model/adapter.h"
#include "tier/codec.h"

namespace reprise {
namespace {

// "exact", or which weights are multiplied row by row through ggml.
std::string Arithmetic(const StartReport& report) {
  std::string others;
  for (const WeightTypeCount& count : report.model->weight_types)
    if (!HasKernel(count.type)) absl::StrAppend(&others, others.empty() ? "" : ", ", std::string(Name(count.type)));
  const BatteryReport& battery = report.battery;
  return absl::StrCat(std::string(Name(report.isa)), ", exact",
                      others.empty() ? "" : absl::StrCat("; ", others, " through ggml, row by row"), "; ",
                      battery.checks - battery.different.size(), " of ", battery.checks, " checks as recorded");
}

std::string Amount(const LimitLine& limit) {
  return limit.unit == "bytes" ? HumanBytes(limit.value) : absl::StrCat(WithCommas(limit.value), " ", limit.unit);
}

void AppendLine(std::string& text, const char* head, const std::string& rest) {
  char start[16];
  std::snprintf(start, sizeof(start), "%-11s ", head);
  absl::StrAppend(&text, start, rest, "\n");
}

// As --cache-format takes it.
const char* FormatName(const DiskChoice& disk) { return disk.options.codec == Codec::kRaw ? "raw" : "compressed"; }

nlohmann::ordered_json DiskJson(const DiskChoice& disk) {
  if (!disk.off.empty()) return {{"off", disk.off}};
  return {{"directory", disk.options.directory},
          {"bytes_max", disk.options.bytes_max},
          {"from", disk.from},
          {"format", FormatName(disk)},
          {"held_bytes", disk.held_bytes}};
}

std::string Columns(int first_width, const std::string& first, const std::string& second) {
  char text[512];
  std::snprintf(text, sizeof(text), "%-*s  %s", first_width, first.c_str(), second.c_str());
  return text;
}

}  // namespace

std::string OpenedDiskText(const OpenedDisk& disk) {
  std::string text;
  if (disk.status == nullptr || disk.status->directory.empty()) return text;
  const LocalEngine::DiskStatus& status = *disk.status;
  if (!status.error.empty()) {
    AppendLine(text, "warning", absl::StrCat("no disk cache: ", status.error));
    return text;
  }
  AppendLine(text, "disk cache",
             absl::StrFormat("%s: %s blocks in %s, opened in %.2f s", status.directory, WithCommas(disk.usage.blocks),
                             HumanBytes(disk.usage.bytes), status.opened.seconds));
  if (status.opened.read_only)
    AppendLine(text, "warning", "another process writes to that directory: this one only reads what is there now");
  if (status.opened.damaged_records > 0)
    AppendLine(text, "warning",
               absl::StrCat(WithCommas(status.opened.damaged_records),
                            " damaged records are not used; reprise cache verify has the details"));
  return text;
}

std::string OpenedDiskJson(const OpenedDisk& disk) {
  if (disk.status == nullptr || disk.status->directory.empty()) return "null";
  const LocalEngine::DiskStatus& status = *disk.status;
  using nlohmann::ordered_json;
  const ordered_json out = {{"directory", status.directory},
                            {"read_only", status.opened.read_only},
                            {"error", status.error.empty() ? ordered_json(nullptr) : ordered_json(status.error)},
                            {"blocks", disk.usage.blocks},
                            {"records", disk.usage.records},
                            {"bytes", disk.usage.bytes},
                            {"cut_bytes", status.opened.cut_bytes},
                            {"foreign_records", status.opened.foreign_records},
                            {"damaged_records", status.opened.damaged_records},
                            {"seconds", status.opened.seconds}};
  return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string BannerText(const StartReport& report) {
  const ModelDescription& model = *report.model;
  const MemoryPlan& plan = report.plan;
  std::string weights, text;
  for (const WeightTypeCount& count : model.weight_types)
    absl::StrAppend(&weights, weights.empty() ? "" : ", ", std::string(Name(count.type)), " ", HumanBytes(count.bytes));
  char size[32];
  std::snprintf(size, sizeof(size), "%.0f M", static_cast<double>(model.parameters) / 1e6);
  AppendLine(text, "model", absl::StrCat(model.name, " (", model.family_name, ", ", size, " parameters)"));
  AppendLine(text, "weights", weights);
  for (size_t i = 0; i < model.adapters.size(); ++i) {
    const AdapterDescription& adapter = model.adapters[i];
    AppendLine(text, i == 0 ? "adapters" : "",
               absl::StrCat(adapter.name, ": rank ", adapter.rank_max, ", scale ", adapter.scale, ", ",
                            HumanBytes(AdapterWeights::FootprintOf(adapter).bytes)));
  }
  AppendLine(
      text, "K and V",
      absl::StrCat(std::string(Name(model.geometry.key_type)), ", blocks of ", model.geometry.block_tokens, " tokens"));
  AppendLine(text, "arithmetic",
             absl::StrCat(Arithmetic(report), "; ", report.threads, " threads (", report.threads_from, ")"));
  AppendLine(text, "chat", report.chat);
  std::string names;
  for (const std::string& name : report.names) absl::StrAppend(&names, names.empty() ? "" : ", ", name);
  AppendLine(text, "served as", names);
  AppendLine(
      text, "memory",
      absl::StrCat(HumanBytes(plan.total_bytes()), " of ", HumanBytes(plan.memory_bytes), " (", plan.memory_from, ")"));
  char amount[24];
  for (const Footprint& line : plan.lines) {
    std::snprintf(amount, sizeof(amount), "%10s", HumanBytes(line.bytes).c_str());
    AppendLine(text, "", Columns(10, amount, line.component));
  }
  if (report.disk.off.empty()) {
    AppendLine(text, "disk cache",
               absl::StrCat(report.disk.options.directory, ", ", FormatName(report.disk), ", at most ",
                            HumanBytes(report.disk.options.bytes_max), " for this model (", report.disk.from, ")"));
    AppendLine(text, "",
               report.disk.held_bytes > 0 ? absl::StrCat("holds ", HumanBytes(report.disk.held_bytes), " of all models")
                                          : "holds nothing yet");
  }
  for (size_t i = 0; i < report.limits.size(); ++i)
    AppendLine(text, i == 0 ? "limits" : "",
               Columns(34, Columns(14, report.limits[i].name, Amount(report.limits[i])), report.limits[i].from));
  for (size_t i = 0; i < report.off.size(); ++i) {
    const OffLine& off = report.off[i];
    AppendLine(text, i == 0 ? "off" : "",
               Columns(14, off.name, absl::StrCat(off.meaning, off.flag.empty() ? "" : "; on with ", off.flag)));
  }
  for (const std::string& warning : report.warnings) AppendLine(text, "warning", warning);
  return text;
}

std::string BannerJson(const StartReport& report) {
  using nlohmann::ordered_json;
  const ModelDescription& model = *report.model;
  ordered_json weights = ordered_json::array(), memory = ordered_json::array(), limits = ordered_json::object(),
               off = ordered_json::array(), adapters = ordered_json::array();
  for (const WeightTypeCount& count : model.weight_types)
    weights.push_back({{"type", std::string(Name(count.type))},
                       {"bytes", count.bytes},
                       {"kernel", HasKernel(count.type) ? "reprise" : "ggml"}});
  for (const Footprint& line : report.plan.lines)
    memory.push_back({{"component", line.component}, {"bytes", line.bytes}});
  for (const LimitLine& limit : report.limits)
    limits[limit.name] = {{"value", limit.value}, {"unit", limit.unit}, {"from", limit.from}};
  for (const OffLine& line : report.off)
    off.push_back({{"name", line.name}, {"meaning", line.meaning}, {"flag", line.flag}});
  for (const AdapterDescription& adapter : model.adapters)
    adapters.push_back({{"name", adapter.name},
                        {"path", adapter.path},
                        {"rank", adapter.rank_max},
                        {"scale", adapter.scale},
                        {"bytes", AdapterWeights::FootprintOf(adapter).bytes}});
  const ordered_json out = {
      {"model",
       {{"path", model.path}, {"name", model.name}, {"family", model.family_name}, {"parameters", model.parameters}}},
      {"weights", weights},
      {"adapters", adapters},
      {"kv", {{"type", std::string(Name(model.geometry.key_type))}, {"block_tokens", model.geometry.block_tokens}}},
      {"arithmetic", Arithmetic(report)},
      {"battery", {{"checks", report.battery.checks}, {"different", report.battery.different}}},
      {"threads", {{"value", report.threads}, {"from", report.threads_from}}},
      {"chat", report.chat},
      {"served_as", report.names},
      {"address", report.address},
      {"memory",
       {{"planned_bytes", report.plan.total_bytes()},
        {"limit_bytes", report.plan.memory_bytes},
        {"from", report.plan.memory_from},
        {"components", memory}}},
      {"disk", DiskJson(report.disk)},
      {"limits", limits},
      {"off", off},
      {"warnings", report.warnings}};
  return out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace reprise
