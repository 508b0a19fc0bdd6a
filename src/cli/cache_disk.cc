#include "cli/cache_disk.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/bytes.h"
#include "base/text.h"
#include "prefix/namespace.h"
#include "tier/disk_store.h"
#include "tier/segment.h"

namespace reprise {
namespace {

using nlohmann::ordered_json;

constexpr size_t kDigitsShown = 12;
constexpr size_t kDigitsMin = 8;  // of a digest that is typed
constexpr char kDefaultTenant[] = "default";

struct Model {
  std::string name;  // of its directory; "." if it was named itself
  std::string path;
};

bool HasSegments(const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(),
                     [](const std::string& name) { return SegmentNumber(name).has_value(); });
}

// Empty: nothing is there, which `out` says.
absl::StatusOr<std::vector<Model>> Models(const CacheDisk& disk, std::string& out) {
  const absl::StatusOr<std::vector<std::string>> here = disk.files.ListFiles(disk.directory);
  std::vector<Model> models;
  if (here.ok()) {
    if (HasSegments(*here)) return std::vector<Model>{{".", disk.directory}};
    const absl::StatusOr<std::vector<std::string>> names = disk.files.ListDirectories(disk.directory);
    if (!names.ok()) return names.status();
    for (const std::string& name : *names) models.push_back({name, absl::StrCat(disk.directory, "/", name)});
  } else if (!absl::IsNotFound(here.status())) {
    return here.status();
  }
  if (models.empty() && !disk.json)
    absl::StrAppend(&out, disk.directory, here.ok() ? " is empty" : " does not exist",
                    ": nothing has been stored there yet\n");
  return models;
}

Digest TenantDigest(const std::string& tenant) {
  return *DeriveNamespace({}, {}, {.tenant = tenant}).tag(NamespaceTag::kTenant);
}

// A name where it is known, else the first digits of its digest.
std::string ScopeOf(const DiskListing& listing) {
  const std::optional<Digest>& tenant = listing.name_space.tag(NamespaceTag::kTenant);
  if (!tenant) return "";
  return *tenant == TenantDigest(kDefaultTenant) ? kDefaultTenant : tenant->Hex().substr(0, kDigitsShown);
}

// Not those of a namespace without any: its field is there, and empty.
std::optional<Digest> AdaptersOf(const DiskListing& listing) {
  const std::optional<Digest>& adapters = listing.name_space.tag(NamespaceTag::kAdapters);
  return adapters == DeriveNamespace({}, {}, {}).tag(NamespaceTag::kAdapters) ? std::nullopt : adapters;
}

std::string Age(uint64_t then_s, uint64_t now_s) {
  if (then_s >= now_s) return "now";
  const uint64_t seconds = now_s - then_s;
  if (seconds < 120) return absl::StrCat(seconds, " s ago");
  if (seconds < 2 * 3600) return absl::StrCat(seconds / 60, " min ago");
  if (seconds < 2 * 86400) return absl::StrCat(seconds / 3600, " h ago");
  return absl::StrCat(seconds / 86400, " days ago");
}

std::string Line(const std::string& name, const std::string& text) { return absl::StrFormat("%-12s%s\n", name, text); }

uint64_t FileBytes(FileSystem& files, const std::string& directory, uint64_t& segments) {
  uint64_t bytes = 0;
  const absl::StatusOr<std::vector<std::string>> names = files.ListFiles(directory);
  if (!names.ok()) return 0;
  for (const std::string& name : *names) {
    segments += SegmentNumber(name).has_value() ? 1 : 0;
    const auto file = files.Open(absl::StrCat(directory, "/", name), FileSystem::Mode::kRead);
    if (file.ok()) bytes += (*file)->Size().value_or(0);
  }
  return bytes;
}

void Finish(const CacheDisk& disk, ordered_json models, std::string& out) {
  if (!disk.json) return;
  const ordered_json all = {{"directory", disk.directory}, {"models", std::move(models)}};
  absl::StrAppend(&out, all.dump(2, ' ', false, ordered_json::error_handler_t::replace), "\n");
}

std::string ListingLine(const DiskListing& listing, uint64_t now_s) {
  std::string with = listing.name_space.tag(NamespaceTag::kSalt) ? "salt" : "";
  if (AdaptersOf(listing)) absl::StrAppend(&with, with.empty() ? "" : ", ", "adapters");
  return absl::StrFormat("  %-13s %-13s %10s %9s %7s %10s  %-12s %s\n",
                         listing.name_space.id.digest.Hex().substr(0, kDigitsShown), ScopeOf(listing),
                         WithCommas(listing.tokens), WithCommas(listing.blocks), WithCommas(listing.tails),
                         HumanBytes(listing.bytes), Age(listing.newest_s, now_s), with);
}

ordered_json ListingJson(const DiskListing& listing) {
  const auto hex = [](const std::optional<Digest>& value) {
    return value ? ordered_json(value->Hex()) : ordered_json(nullptr);
  };
  return {{"namespace", listing.name_space.id.digest.Hex()},
          {"scope", ScopeOf(listing)},
          {"tenant", hex(listing.name_space.tag(NamespaceTag::kTenant))},
          {"salt", hex(listing.name_space.tag(NamespaceTag::kSalt))},
          {"adapters", hex(AdaptersOf(listing))},
          {"records", listing.records},
          {"blocks", listing.blocks},
          {"tails", listing.tails},
          {"tokens", listing.tokens},
          {"bytes", listing.bytes},
          {"newest_s", listing.newest_s}};
}

// The digests of the tenants that a name or digits may mean.
absl::StatusOr<Digest> TenantOf(const CacheDisk& disk, const std::vector<Model>& models, const std::string& scope) {
  const bool digits = scope.size() >= kDigitsMin && scope.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!digits) return TenantDigest(scope);
  std::map<std::string, Digest> found;
  for (const Model& model : models) {
    const absl::StatusOr<std::vector<DiskListing>> listings = ListDisk(disk.files, model.path);
    if (!listings.ok()) return listings.status();
    for (const DiskListing& listing : *listings) {
      const std::optional<Digest>& tenant = listing.name_space.tag(NamespaceTag::kTenant);
      if (tenant && tenant->Hex().starts_with(scope)) found.emplace(tenant->Hex(), *tenant);
    }
  }
  if (found.size() > 1)
    return absl::InvalidArgumentError(
        absl::StrCat("--scope ", scope, ": ", found.size(), " scopes begin like this; give more digits"));
  return found.empty() ? TenantDigest(scope) : found.begin()->second;
}

void AppendErased(const CacheDisk& disk, const Model& model, const TierErased& erased, ordered_json& models,
                  std::string& out) {
  models.push_back({{"model", model.name}, {"blocks", erased.blocks}, {"bytes", erased.bytes}});
  if (!disk.json)
    absl::StrAppend(
        &out, Line(model.name, absl::StrCat(" ", WithCommas(erased.blocks), erased.blocks == 1 ? " block" : " blocks",
                                            " gone, ", HumanBytes(erased.bytes), " given back")));
}

}  // namespace

absl::Status StatCache(const CacheDisk& disk, std::string& out) {
  const absl::StatusOr<std::vector<Model>> models = Models(disk, out);
  if (!models.ok()) return models.status();
  ordered_json all = ordered_json::array();
  uint64_t total = 0;
  for (const Model& model : *models) {
    const absl::StatusOr<std::vector<DiskListing>> listings = ListDisk(disk.files, model.path);
    if (!listings.ok()) return listings.status();
    uint64_t segments = 0, records = 0, blocks = 0, tails = 0, tokens = 0, live = 0;
    const uint64_t bytes = FileBytes(disk.files, model.path, segments);
    total += bytes;
    for (const DiskListing& listing : *listings) {
      records += listing.records;
      blocks += listing.blocks;
      tails += listing.tails;
      tokens += listing.tokens;
      live += listing.bytes;
    }
    all.push_back({{"model", model.name},
                   {"bytes", bytes},
                   {"bytes_records", live},
                   {"segments", segments},
                   {"records", records},
                   {"blocks", blocks},
                   {"tails", tails},
                   {"tokens", tokens},
                   {"namespaces", listings->size()}});
    if (disk.json) continue;
    absl::StrAppend(
        &out, Line("model", model.name),
        Line("holds", absl::StrCat(WithCommas(tokens), " tokens in ", WithCommas(blocks), " blocks and ",
                                   WithCommas(tails), " ends of blocks")),
        Line("takes", absl::StrCat(HumanBytes(bytes), " in ", segments, segments == 1 ? " segment" : " segments", "; ",
                                   HumanBytes(live), " are records")),
        Line("namespaces", WithCommas(listings->size())));
  }
  if (models->size() > 1 && !disk.json) absl::StrAppend(&out, Line("together", HumanBytes(total)));
  Finish(disk, std::move(all), out);
  return absl::OkStatus();
}

absl::Status ListCache(const CacheDisk& disk, uint64_t now_s, std::string& out) {
  const absl::StatusOr<std::vector<Model>> models = Models(disk, out);
  if (!models.ok()) return models.status();
  ordered_json all = ordered_json::array();
  for (const Model& model : *models) {
    absl::StatusOr<std::vector<DiskListing>> listings = ListDisk(disk.files, model.path);
    if (!listings.ok()) return listings.status();
    std::sort(listings->begin(), listings->end(),
              [](const DiskListing& a, const DiskListing& b) { return a.bytes > b.bytes; });
    ordered_json namespaces = ordered_json::array();
    for (const DiskListing& listing : *listings) namespaces.push_back(ListingJson(listing));
    all.push_back({{"model", model.name}, {"namespaces", std::move(namespaces)}});
    if (disk.json) continue;
    absl::StrAppend(&out, Line("model", model.name));
    if (listings->empty()) absl::StrAppend(&out, "  nothing\n");
    if (!listings->empty())
      absl::StrAppend(&out, absl::StrFormat("  %-13s %-13s %10s %9s %7s %10s  %s\n", "namespace", "scope", "tokens",
                                            "blocks", "ends", "bytes", "newest"));
    for (const DiskListing& listing : *listings) absl::StrAppend(&out, ListingLine(listing, now_s));
  }
  Finish(disk, std::move(all), out);
  return absl::OkStatus();
}

absl::Status VerifyCache(const CacheDisk& disk, const std::function<void(double)>& progress, std::string& out) {
  const absl::StatusOr<std::vector<Model>> models = Models(disk, out);
  if (!models.ok()) return models.status();
  ordered_json all = ordered_json::array();
  uint64_t problems = 0, done = 0, total = 0, segments = 0;
  for (const Model& model : *models) total += FileBytes(disk.files, model.path, segments);
  for (const Model& model : *models) {
    const uint64_t bytes = FileBytes(disk.files, model.path, segments);
    const auto share = [&](double fraction) {
      if (total > 0) progress(std::min(1.0, (done + fraction * bytes) / total));
    };
    const absl::StatusOr<DiskReport> report = VerifyDisk(disk.files, model.path, share);
    if (!report.ok()) return report.status();
    done += bytes;
    problems += report->problems.size();
    ordered_json found = ordered_json::array();
    for (const DiskReport::Problem& problem : report->problems)
      found.push_back(
          {{"file", absl::StrCat(model.path, "/", problem.file)}, {"offset", problem.offset}, {"what", problem.what}});
    all.push_back({{"model", model.name},
                   {"segments", report->segments},
                   {"records", report->records},
                   {"blocks", report->blocks},
                   {"tails", report->tails},
                   {"bytes", report->bytes},
                   {"torn_bytes", report->torn_bytes},
                   {"problems", std::move(found)}});
    if (disk.json) continue;
    absl::StrAppend(
        &out, Line("model", model.name),
        Line("read", absl::StrCat(HumanBytes(report->bytes), ": ", WithCommas(report->segments), " segments, ",
                                  WithCommas(report->records), " records, ", WithCommas(report->blocks), " blocks, ",
                                  WithCommas(report->tails), " ends of blocks")));
    if (report->torn_bytes > 0)
      absl::StrAppend(
          &out, Line("torn end", absl::StrCat(HumanBytes(report->torn_bytes), " that were being written; not damage")));
    for (const DiskReport::Problem& problem : report->problems)
      absl::StrAppend(&out, Line("damaged", absl::StrCat(model.path, "/", problem.file, " at ", problem.offset, ": ",
                                                         problem.what)));
    if (report->problems.empty()) absl::StrAppend(&out, Line("damaged", "nothing"));
  }
  Finish(disk, std::move(all), out);
  if (problems == 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(problems, problems == 1 ? " place is" : " places are",
                                          " damaged; a server computes what was there instead of reading it"));
}

absl::Status CollectCache(const CacheDisk& disk, uint64_t bytes_max, std::string& out) {
  const absl::StatusOr<std::vector<Model>> models = Models(disk, out);
  if (!models.ok()) return models.status();
  ordered_json all = ordered_json::array();
  for (const Model& model : *models) {
    const absl::StatusOr<TierErased> erased = CollectDisk(disk.files, model.path, bytes_max);
    if (!erased.ok()) return erased.status();
    AppendErased(disk, model, *erased, all, out);
  }
  Finish(disk, std::move(all), out);
  return absl::OkStatus();
}

absl::Status EraseCache(const CacheDisk& disk, const std::string& scope, std::string& out) {
  const absl::StatusOr<std::vector<Model>> models = Models(disk, out);
  if (!models.ok()) return models.status();
  const absl::StatusOr<Digest> tenant = TenantOf(disk, *models, scope);
  if (!tenant.ok()) return tenant.status();
  ordered_json all = ordered_json::array();
  uint64_t blocks = 0;
  for (const Model& model : *models) {
    const absl::StatusOr<TierErased> erased = EraseDisk(disk.files, model.path, *tenant);
    if (!erased.ok()) return erased.status();
    blocks += erased->blocks;
    AppendErased(disk, model, *erased, all, out);
  }
  if (blocks == 0 && !models->empty() && !disk.json)
    absl::StrAppend(&out, "nothing of the scope '", scope, "' was there; `reprise cache list` shows the scopes\n");
  Finish(disk, std::move(all), out);
  return absl::OkStatus();
}

}  // namespace reprise
