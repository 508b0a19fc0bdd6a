// reprise inspect record, segment: what a file of the disk tier holds, and whether all of it is as it was written.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/text.h"
#include "cli/commands.h"
#include "env/file_system.h"
#include "tier/record.h"
#include "tier/segment.h"

namespace reprise {
namespace {

struct TierFileFlags {
  std::string path;
  uint64_t offset = 0;
  bool json = false;
};

// A record as it lies in a file: the header is right, payloads may not be.
struct StoredRecord {
  uint64_t offset = 0;
  RecordHeader header;
  std::vector<TierOutcome> payloads;

  bool ok() const {
    return std::all_of(payloads.begin(), payloads.end(),
                       [](TierOutcome outcome) { return outcome == TierOutcome::kOk; });
  }
};

absl::StatusOr<std::vector<std::byte>> ReadPart(const File& file, uint64_t offset, uint64_t bytes) {
  std::vector<std::byte> out(bytes);
  const absl::StatusOr<size_t> got = file.ReadAt(offset, out);
  if (!got.ok()) return got.status();
  out.resize(*got);
  return out;
}

// A payload that is not all there is damaged. Not more is allocated than the file has, but for the slot of one that is
// there.
std::vector<TierOutcome> CheckPayloads(const File& file, uint64_t offset, const RecordHeader& header) {
  std::vector<TierOutcome> out(header.payloads.size(), TierOutcome::kDamaged);
  const absl::StatusOr<uint64_t> size = file.Size();
  if (!size.ok() || *size < offset || *size - offset < header.record_bytes) return out;
  std::vector<std::byte> slot(header.shape.slot_bytes), scratch;
  for (size_t i = 0; i < out.size(); ++i) {
    const RecordPayload& payload = header.payloads[i];
    const auto kept = ReadPart(file, offset + payload.offset, payload.kept_bytes());
    out[i] = kept.ok() ? DecodePayload(header, i, *kept, slot, scratch) : TierOutcome::kError;
  }
  return out;
}

absl::StatusOr<StoredRecord> ReadRecord(const File& file, uint64_t offset) {
  auto bytes = ReadPart(file, offset, kRecordPrefixBytes);
  if (!bytes.ok()) return bytes.status();
  const absl::StatusOr<uint32_t> header_bytes = RecordHeaderBytes(*bytes);
  if (!header_bytes.ok()) {
    if (offset == 0 && !absl::IsDataLoss(DecodeSegmentHeader(*bytes).status())) {
      return absl::InvalidArgumentError(absl::StrCat("a segment begins here; its first record is at --offset ",
                                                     kSegmentHeaderBytes,
                                                     ", and `reprise inspect segment` lists them all"));
    }
    return header_bytes.status();
  }
  bytes = ReadPart(file, offset, *header_bytes);
  if (!bytes.ok()) return bytes.status();
  absl::StatusOr<RecordHeader> header = DecodeRecordHeader(*bytes);
  if (!header.ok()) return header.status();
  std::vector<TierOutcome> payloads = CheckPayloads(file, offset, *header);
  return StoredRecord{offset, *std::move(header), std::move(payloads)};
}

std::string Sha(const Digest& digest) { return "sha256:" + digest.Hex(); }

nlohmann::json Summary(const StoredRecord& record) {
  const RecordHeader& header = record.header;
  uint64_t kept = 0;
  for (const RecordPayload& payload : header.payloads) kept += payload.bytes;
  return {{"offset", record.offset},
          {"bytes", header.record_bytes},
          {"sequence", header.sequence},
          {"namespace", Sha(header.name_space.id.digest)},
          {"tenant", Sha(header.tenant())},
          {"group", header.group.value()},
          {"kind", std::string(Name(header.shape.kind))},
          {"blocks", header.keys.size()},
          {"first_token", header.first_token},
          {"token_count", header.tokens.size()},
          {"slot_bytes", header.shape.slot_bytes},
          {"kept_bytes", kept},
          {"ok", record.ok()}};
}

nlohmann::json ToJson(const StoredRecord& record) {
  const RecordHeader& header = record.header;
  nlohmann::json out = Summary(record);
  for (size_t i = 0; i < kNamespaceTags; ++i)
    if (header.name_space.tags[i].has_value())
      out["fields"][std::string(Name(static_cast<NamespaceTag>(i + 1)))] = Sha(*header.name_space.tags[i]);
  out["parent"] = Sha(header.parent);
  out["block_tokens"] = header.shape.block_tokens;
  out["layers"] = header.shape.layers;
  out["kv_heads"] = header.shape.kv_heads;
  out["key_dim"] = header.shape.key_dim;
  out["value_dim"] = header.shape.value_dim;
  out["key_type"] = std::string(Name(header.shape.key_type));
  out["value_type"] = std::string(Name(header.shape.value_type));
  out["window"] = header.shape.window;
  for (const BlockKey& key : header.keys) out["keys"].push_back(Sha(key.digest));
  for (TokenId token : header.tokens) out["tokens"].push_back(token.value());
  for (size_t i = 0; i < header.payloads.size(); ++i)
    out["payloads"].push_back({{"offset", record.offset + header.payloads[i].offset},
                               {"bytes", header.payloads[i].bytes},
                               {"codec", std::string(Name(header.payloads[i].codec))},
                               {"crc32c", header.payloads[i].crc},
                               {"result", std::string(Name(record.payloads[i]))}});
  return out;
}

void Print(const StoredRecord& record) {
  const RecordHeader& header = record.header;
  const RecordShape& shape = header.shape;
  std::printf("record       %s at %lu, number %lu\n", HumanBytes(header.record_bytes).c_str(),
              static_cast<unsigned long>(record.offset), static_cast<unsigned long>(header.sequence));
  if (header.is_tail())
    std::printf("holds        a tail of %zu tokens", header.tokens.size());
  else
    std::printf("holds        %zu blocks of %u tokens", header.keys.size(), shape.block_tokens);
  std::printf(", from position %u of the prompt\n", header.first_token);
  std::printf("group        %u, %s, %u layers, %u KV heads, dims %u and %u, %s and %s", header.group.value(),
              std::string(Name(shape.kind)).c_str(), shape.layers, shape.kv_heads, shape.key_dim, shape.value_dim,
              std::string(Name(shape.key_type)).c_str(), std::string(Name(shape.value_type)).c_str());
  if (shape.window > 0) std::printf(", window %u", shape.window);
  std::printf("\nnamespace    %s\n", Sha(header.name_space.id.digest).c_str());
  for (size_t i = 0; i < kNamespaceTags; ++i)
    if (header.name_space.tags[i].has_value())
      std::printf("  %-10s %s\n", std::string(Name(static_cast<NamespaceTag>(i + 1))).c_str(),
                  Sha(*header.name_space.tags[i]).c_str());
  std::printf("parent       %s%s\n", Sha(header.parent).c_str(),
              header.first_token == 0 ? ", the namespace: this is a beginning" : "");
  for (size_t i = 0; i < header.payloads.size(); ++i) {
    const RecordPayload& payload = header.payloads[i];
    if (!header.is_tail()) std::printf("block %-6zu %s\n", i, Sha(header.keys[i].digest).c_str());
    std::printf("%-12s %s of %s, %s, at %lu, CRC32C %08x: %s\n", header.is_tail() ? "tail" : "",
                HumanBytes(payload.bytes).c_str(), HumanBytes(shape.slot_bytes).c_str(),
                std::string(Name(payload.codec)).c_str(), static_cast<unsigned long>(record.offset + payload.offset),
                payload.crc, std::string(Name(record.payloads[i])).c_str());
  }
}

absl::Status InspectRecord(const TierFileFlags& flags) {
  const auto file = RealFileSystem().Open(flags.path, FileSystem::Mode::kRead);
  if (!file.ok()) return file.status();
  const absl::StatusOr<StoredRecord> record = ReadRecord(**file, flags.offset);
  if (!record.ok())
    return absl::Status(record.status().code(), absl::StrCat(flags.path, ": ", record.status().message()));
  if (flags.json)
    std::printf("%s\n", ToJson(*record).dump(2).c_str());
  else
    Print(*record);
  if (!record->ok()) return absl::DataLossError(absl::StrCat(flags.path, ": a payload is damaged; it is never served"));
  return absl::OkStatus();
}

// What can be wrong with a segment, in a word, and for people.
struct EndWords {
  std::string_view name, words;
  bool damaged;
};
EndWords WordsOf(SegmentEnd end) {
  switch (end) {
    case SegmentEnd::kFooter:
      return {"footer", "closed, with a footer", false};
    case SegmentEnd::kOpen:
      return {"open", "not closed yet, or its process was killed", false};
    case SegmentEnd::kTorn:
      return {"torn", "the last write did not arrive as a whole; the next start cuts it off", false};
    case SegmentEnd::kBadFooter:
      return {"bad_footer", "its footer, or a record before it, is damaged", true};
    case SegmentEnd::kForeign:
      return {"foreign", "a record of another version or byte order, and what comes after it", false};
  }
  return {"", "", true};
}

std::string Date(uint64_t unix_s) {
  const time_t time = static_cast<time_t>(unix_s);
  tm parts;
  char text[32];
  if (gmtime_r(&time, &parts) == nullptr || std::strftime(text, sizeof(text), "%F %T UTC", &parts) == 0) return "?";
  return text;
}

struct SegmentReport {
  SegmentContents contents;
  std::vector<StoredRecord> records;
  std::vector<std::string> problems;
};

// The records where they lie, whatever the footer says; and the footer's own headers against them.
absl::StatusOr<SegmentReport> ReadWholeSegment(const TierFileFlags& flags) {
  const auto file = RealFileSystem().Open(flags.path, FileSystem::Mode::kRead);
  if (!file.ok()) return file.status();
  const auto bytes = ReadPart(**file, 0, kSegmentHeaderBytes);
  if (!bytes.ok()) return bytes.status();
  const absl::StatusOr<SegmentHeader> header = DecodeSegmentHeader(*bytes);
  if (!header.ok()) return header.status();
  // A copy under any name may be looked at; under the name of another segment it is not what it says.
  const auto named = SegmentNumber(std::filesystem::path(flags.path).filename().string());
  SegmentReport report;
  const auto contents = ReadSegment(**file, named.value_or(header->number), true, [&](const SegmentRecord& record) {
    absl::StatusOr<StoredRecord> stored = ReadRecord(**file, record.offset);
    if (!stored.ok()) {
      report.problems.push_back(absl::StrCat("at ", record.offset, ": ", stored.status().message()));
      return;
    }
    const auto there = ReadPart(**file, record.offset, stored->header.header_bytes);
    if (!there.ok() ||
        !std::equal(there->begin(), there->end(), record.header_bytes.begin(), record.header_bytes.end()))
      report.problems.push_back(absl::StrCat("at ", record.offset, ": another record than the footer says"));
    for (size_t i = 0; i < stored->payloads.size(); ++i)
      if (stored->payloads[i] != TierOutcome::kOk)
        report.problems.push_back(absl::StrCat("at ", record.offset + stored->header.payloads[i].offset, ": payload ",
                                               i, " of the record at ", record.offset, ": ",
                                               std::string(Name(stored->payloads[i]))));
    report.records.push_back(*std::move(stored));
  });
  if (!contents.ok()) return contents.status();
  report.contents = *contents;
  if (const EndWords end = WordsOf(contents->end); end.damaged)
    report.problems.push_back(absl::StrCat("at ", contents->records_end, ": ", std::string(end.words)));
  if (contents->damaged_records > 0)
    report.problems.push_back(absl::StrCat(contents->damaged_records, " records of the footer say nothing"));
  return report;
}

nlohmann::json ToJson(const SegmentReport& report) {
  nlohmann::json out = {{"number", report.contents.header.number},
                        {"created_s", report.contents.header.created_s},
                        {"first_sequence", report.contents.header.first_sequence},
                        {"file_bytes", report.contents.file_bytes},
                        {"records_end", report.contents.records_end},
                        {"end", std::string(WordsOf(report.contents.end).name)},
                        {"foreign_records", report.contents.foreign_records},
                        {"records", nlohmann::json::array()},
                        {"problems", report.problems}};
  for (const StoredRecord& record : report.records) out["records"].push_back(Summary(record));
  return out;
}

void Print(const SegmentReport& report) {
  const SegmentContents& contents = report.contents;
  std::printf("segment      %u, %s, created %s\n", contents.header.number, HumanBytes(contents.file_bytes).c_str(),
              Date(contents.header.created_s).c_str());
  std::printf("records      %zu, up to %lu", report.records.size(), static_cast<unsigned long>(contents.records_end));
  if (contents.foreign_records > 0)
    std::printf("; %lu of another version or byte order", static_cast<unsigned long>(contents.foreign_records));
  std::printf("\nend          %s\n", std::string(WordsOf(contents.end).words).c_str());
  if (contents.end == SegmentEnd::kTorn || contents.end == SegmentEnd::kForeign)
    std::printf("             %lu bytes are not looked at\n",
                static_cast<unsigned long>(contents.file_bytes - contents.records_end));
  if (!report.records.empty())
    std::printf("%12s %10s %5s %-9s %6s %6s %8s  %-16s %s\n", "offset", "bytes", "group", "kind", "blocks", "tokens",
                "from", "namespace", "result");
  for (const StoredRecord& record : report.records) {
    const RecordHeader& header = record.header;
    std::printf("%12lu %10lu %5u %-9s %6zu %6zu %8u  %.16s %s\n", static_cast<unsigned long>(record.offset),
                static_cast<unsigned long>(header.record_bytes), header.group.value(),
                std::string(Name(header.shape.kind)).c_str(), header.keys.size(), header.tokens.size(),
                header.first_token, header.name_space.id.digest.Hex().c_str(), record.ok() ? "ok" : "damaged");
  }
  for (const std::string& problem : report.problems) std::printf("damaged      %s\n", problem.c_str());
}

absl::Status InspectSegment(const TierFileFlags& flags) {
  const absl::StatusOr<SegmentReport> report = ReadWholeSegment(flags);
  if (!report.ok())
    return absl::Status(report.status().code(), absl::StrCat(flags.path, ": ", report.status().message()));
  if (flags.json)
    std::printf("%s\n", ToJson(*report).dump(2).c_str());
  else
    Print(*report);
  if (!report->problems.empty())
    return absl::DataLossError(absl::StrCat(flags.path, " is damaged; what is damaged in it is never served"));
  return absl::OkStatus();
}

}  // namespace

void AddInspectTierCommands(CLI::App& inspect, int& status) {
  const auto flags = std::make_shared<TierFileFlags>();
  const auto add = [&](const std::string& name, const std::string& what, absl::Status (*run)(const TierFileFlags&)) {
    CLI::App* command = inspect.add_subcommand(name, what);
    command->add_option("FILE", flags->path, "a file of the disk tier's directory")->required();
    command->add_flag("--json", flags->json, "print JSON");
    command->callback([flags, run, &status] {
      if (const absl::Status done = run(*flags); !done.ok()) status = Report(done);
    });
    return command;
  };
  add("record", "show a record of a tier, and check all of it", InspectRecord)
      ->add_option("--offset", flags->offset, "where it begins in the file")
      ->capture_default_str();
  add("segment", "list the records of a segment of the disk tier, and check all of them", InspectSegment);
}

}  // namespace reprise
