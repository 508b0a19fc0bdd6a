// The disk store beside plain files: what storing and fetching cost over writing and reading the same bytes one after
// the other, and how long opening takes.
//
//   tier_disk_store_bench [--mode=throughput|open|reopen] [--directory=disk-bench] [--mib=512] [--rounds=3]
//   [--record=8]
//
//   throughput  interleaved rounds; medians in MB/s of slot bytes: page cache warm and dropped, raw and compressed
//   open        an index of --mib of records, made of footers in sparse files; seconds to open it
//   reopen      --mib really written, then opened, and every piece read and checked
//
// Slots are those of a model with 28 layers, 2 KV heads of 128, blocks of 64: 1.75 MiB. The directory is made and
// removed.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "prefix/block_key.h"
#include "tier/disk_store.h"
#include "tier/segment.h"

namespace reprise {
namespace {

struct Options {
  std::string mode = "throughput", directory = "disk-bench";
  uint64_t mib = 512, rounds = 3, record = 8;
};

using Clock = std::chrono::steady_clock;
double Seconds(const std::function<void()>& work) {
  const Clock::time_point begin = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

Geometry BenchGeometry() {
  LayerGroup group{.kind = GroupKind::kFull, .kv_heads = 2, .key_dim = 128, .value_dim = 128};
  for (uint32_t i = 0; i < 28; ++i) group.layers.push_back(i);
  return {.groups = {group}, .block_tokens = 64};
}

BlockKey KeyOf(const Digest& parent, std::span<const TokenId> tokens) { return BlockHasher().Next(parent, tokens); }

// A long chain of blocks, and payloads: f16 of a normal distribution, as K and V roughly are.
struct Workload {
  Geometry geometry = BenchGeometry();
  uint64_t slot_bytes = SlotBytes(geometry, GroupId(0));
  NamespaceDigests name_space;
  std::vector<TokenId> tokens;
  std::vector<BlockKey> keys;
  std::vector<std::byte> payload;

  explicit Workload(uint64_t blocks) {
    name_space.id.digest = Sha256::Of("bench");
    std::mt19937 random(1);
    for (uint64_t i = 0; i < blocks * geometry.block_tokens; ++i) tokens.push_back(TokenId(random() % 50000));
    for (uint64_t i = 0; i < blocks; ++i) keys.push_back(KeyOf(parent(i), block(i)));
    payload.resize(slot_bytes * 2);
    std::normal_distribution<float> normal;
    for (size_t i = 0; i + 1 < payload.size(); i += 2) {
      const uint32_t bits = std::bit_cast<uint32_t>(normal(random));
      // Nearly f16: sign, exponent moved, ten bits of the mantissa.
      const int exponent = static_cast<int>(bits >> 23 & 255) - 127 + 15;
      const auto half = static_cast<uint16_t>(bits >> 16 & 0x8000) |
                        static_cast<uint16_t>(std::clamp(exponent, 0, 30) << 10) |
                        static_cast<uint16_t>(bits >> 13 & 0x3ff);
      payload[i] = static_cast<std::byte>(half);
      payload[i + 1] = static_cast<std::byte>(half >> 8);
    }
  }
  const Digest& parent(uint64_t i) const { return i == 0 ? name_space.id.digest : keys[i - 1].digest; }
  std::span<const TokenId> block(uint64_t i) const { return std::span(tokens).subspan(i * 64, 64); }
  // Others for each block, without copying.
  std::span<const std::byte> bytes(uint64_t i) const {
    return std::span(payload).subspan((i * 4096) % slot_bytes / 64 * 64, slot_bytes);
  }
  uint64_t blocks() const { return keys.size(); }
};

// Nothing of what was written before is on its way to the device any more.
void StartAnew(const std::string& directory) {
  std::filesystem::remove_all(directory);
  ::sync();
}

void DropCaches(const std::string& directory) {
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const auto file = RealFileSystem().Open(entry.path(), FileSystem::Mode::kReadWrite);
    if (!file.ok() || !(*file)->Sync().ok()) continue;
    (*file)->DropPageCache(0, 0);
  }
}

DiskStoreOptions StoreOptions(const Options& options, Codec codec) {
  return {.directory = options.directory, .geometry = BenchGeometry(), .bytes_max = uint64_t{1} << 40, .codec = codec};
}

struct Store {
  Ledger ledger{uint64_t{4} << 30};
  std::unique_ptr<DiskStore> store;
  double seconds = 0;
  Store(const Options& options, Codec codec) {
    absl::StatusOr<DiskStore::Opened> opened = DiskStore::Open(StoreOptions(options, codec), ledger);
    CHECK(opened.ok());
    store = std::move(opened->store);
    seconds = opened->seconds;
  }
};

void WriteRecords(TierStore& store, const Workload& work, uint64_t per_record) {
  std::vector<std::span<const std::byte>> payloads;
  for (uint64_t i = 0; i < work.blocks(); i += per_record) {
    const uint64_t count = std::min(per_record, work.blocks() - i);
    payloads.clear();
    for (uint64_t k = i; k < i + count; ++k) payloads.push_back(work.bytes(k));
    CHECK(store
              .Write({.name_space = work.name_space,
                      .group = GroupId(0),
                      .parent = work.parent(i),
                      .first_token = static_cast<uint32_t>(i * 64),
                      .keys = std::span(work.keys).subspan(i, count),
                      .tokens = std::span(work.tokens).subspan(i * 64, count * 64),
                      .payloads = payloads})
              .ok());
  }
  CHECK(store.Flush().ok());
}

void ReadRecords(TierStore& store, const Workload& work, std::vector<std::byte>& slot) {
  for (uint64_t i = 0; i < work.blocks(); ++i) {
    const TierRead read{.name_space = work.name_space.id,
                        .group = GroupId(0),
                        .parent = work.parent(i),
                        .first_token = static_cast<uint32_t>(i * 64),
                        .key = work.keys[i],
                        .tokens = work.block(i)};
    CHECK(store.Read(read, slot) == TierOutcome::kOk);
  }
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Throughput(const Options& options) {
  const Workload work(std::max<uint64_t>(1, (options.mib << 20) / (uint64_t{7} << 18)));
  const double megabytes = static_cast<double>(work.blocks() * work.slot_bytes) / 1e6;
  std::vector<std::byte> slot(work.slot_bytes);
  std::printf("%llu slots of %llu bytes, %.0f MB, %llu a record\n", static_cast<unsigned long long>(work.blocks()),
              static_cast<unsigned long long>(work.slot_bytes), megabytes,
              static_cast<unsigned long long>(options.record));
  std::vector<std::pair<std::string, std::vector<double>>> rows;
  const auto add = [&](const std::string& name, double seconds) {
    auto row = std::find_if(rows.begin(), rows.end(), [&](const auto& each) { return each.first == name; });
    if (row == rows.end()) row = rows.insert(rows.end(), {name, {}});
    row->second.push_back(megabytes / seconds);
  };
  FileSystem& files = RealFileSystem();
  for (uint64_t round = 0; round < options.rounds; ++round) {
    StartAnew(options.directory);
    CHECK(files.MakeDirectories(options.directory).ok());
    {
      auto file = files.Open(options.directory + "/plain", FileSystem::Mode::kCreate);
      CHECK(file.ok());
      double written = 0;
      const double synced = Seconds([&] {
        written = Seconds([&] {
          for (uint64_t i = 0; i < work.blocks(); ++i) {
            const std::span<const std::byte> piece = work.bytes(i);
            CHECK((*file)->WriteAt(i * work.slot_bytes, {&piece, 1}).ok());
          }
        });
        CHECK((*file)->Sync().ok());
      });
      add("plain write", written);
      add("plain write, synced", synced);
      const auto read_all = [&] {
        for (uint64_t i = 0; i < work.blocks(); ++i) CHECK((*file)->ReadAt(i * work.slot_bytes, slot).ok());
      };
      add("plain read, warm", Seconds(read_all));
      DropCaches(options.directory);
      add("plain read, dropped", Seconds(read_all));
    }
    for (const Codec codec : {Codec::kRaw, Codec::kPlanes}) {
      StartAnew(options.directory);
      const std::string name = codec == Codec::kRaw ? "store raw, " : "store planes, ";
      Store store(options, codec);
      add(name + "write, synced", Seconds([&] { WriteRecords(*store.store, work, options.record); }));
      add(name + "read, warm", Seconds([&] { ReadRecords(*store.store, work, slot); }));
      DropCaches(options.directory);
      add(name + "read, dropped", Seconds([&] { ReadRecords(*store.store, work, slot); }));
      if (round == 0) std::printf("%skept as %.3f\n", name.c_str(), store.store->usage().bytes / megabytes / 1e6);
    }
  }
  for (auto& [name, values] : rows) std::printf("%-28s %8.0f MB/s\n", name.c_str(), Median(values));
  std::filesystem::remove_all(options.directory);
}

// Headers and footers are real; what would be payload is a hole.
void MakeSparse(const Options& options, const Workload& work) {
  FileSystem& files = RealFileSystem();
  CHECK(files.MakeDirectories(options.directory).ok());
  const RecordShape shape = RecordShape::Of(work.geometry, GroupId(0));
  std::unique_ptr<SegmentWriter> writer;
  uint32_t number = 0;
  EncodedRecord encoded;
  std::vector<std::span<const std::byte>> payloads;
  for (uint64_t i = 0; i < work.blocks(); i += options.record) {
    if (writer == nullptr || writer->file_bytes() > 256 << 20) {
      if (writer != nullptr) CHECK(writer->Close().ok());
      auto made = SegmentWriter::Create(files, options.directory,
                                        {.number = ++number, .first_sequence = SequenceBefore(number)});
      CHECK(made.ok());
      writer = *std::move(made);
    }
    const uint64_t count = std::min(options.record, work.blocks() - i);
    payloads.clear();
    for (uint64_t k = i; k < i + count; ++k) payloads.push_back(work.bytes(0));
    EncodeRecord({.name_space = work.name_space,
                  .group = GroupId(0),
                  .parent = work.parent(i),
                  .first_token = static_cast<uint32_t>(i * 64),
                  .keys = std::span(work.keys).subspan(i, count),
                  .tokens = std::span(work.tokens).subspan(i * 64, count * 64),
                  .payloads = payloads},
                 shape, SequenceBefore(number) + i, Codec::kRaw, encoded);
    const std::span<const std::byte> header(encoded.header);
    CHECK(writer->Append(header, encoded.decoded.record_bytes, {&header, 1}).ok());
  }
  CHECK(writer->Close().ok());
}

void Opening(const Options& options) {
  std::filesystem::remove_all(options.directory);
  const Workload work((options.mib << 20) / (uint64_t{7} << 18));
  std::vector<std::byte> slot(work.slot_bytes);
  if (options.mode == "open") {
    MakeSparse(options, work);
  } else {
    Store store(options, Codec::kRaw);
    std::printf("written in %.1f s\n", Seconds([&] { WriteRecords(*store.store, work, options.record); }));
  }
  for (uint64_t round = 0; round < options.rounds; ++round) {
    for (const bool dropped : {false, true}) {
      if (dropped) DropCaches(options.directory);
      Store store(options, Codec::kRaw);
      const TierUsage usage = store.store->usage();
      CHECK_EQ(usage.blocks, work.blocks());
      std::printf("opened in %.3f s, page cache %s: %llu segments, %llu blocks, %.1f GB\n", store.seconds,
                  dropped ? "dropped" : "warm", static_cast<unsigned long long>(usage.segments),
                  static_cast<unsigned long long>(usage.blocks), static_cast<double>(usage.bytes) / 1e9);
      if (options.mode != "reopen" || !dropped || round > 0) continue;
      DropCaches(options.directory);
      std::printf("all read and checked in %.1f s\n", Seconds([&] { ReadRecords(*store.store, work, slot); }));
    }
  }
  std::filesystem::remove_all(options.directory);
}

}  // namespace
}  // namespace reprise

int main(int argc, char** argv) {
  reprise::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const size_t equals = argument.find('=');
    const std::string_view name = argument.substr(0, equals);
    const std::string value(equals == std::string_view::npos ? "" : argument.substr(equals + 1));
    if (name == "--mode") {
      options.mode = value;
    } else if (name == "--directory") {
      options.directory = value;
    } else if (name == "--mib" || name == "--rounds" || name == "--record") {
      (name == "--mib"      ? options.mib
       : name == "--rounds" ? options.rounds
                            : options.record) = std::max<uint64_t>(1, std::strtoull(value.c_str(), nullptr, 10));
    } else {
      std::fprintf(stderr, "unknown argument: %s\n", argv[i]);
      return 2;
    }
  }
  if (options.mode == "throughput") {
    reprise::Throughput(options);
  } else {
    reprise::Opening(options);
  }
  return 0;
}
