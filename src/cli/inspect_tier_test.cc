// reprise inspect record, segment: on files as a store writes them, whole and damaged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "env/file_system.h"
#include "tier/record.h"
#include "tier/segment.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

class InspectTierTest : public testing::Test {
 protected:
  InspectTierTest() {
    std::string name = (std::filesystem::temp_directory_path() / "reprise-inspect-XXXXXX").string();
    directory_ = mkdtemp(name.data());
  }
  ~InspectTierTest() override { std::filesystem::remove_all(directory_); }

  // A tail: it needs no keys.
  EncodedRecord Tail(uint64_t sequence) {
    const LayerGroup group{.kind = GroupKind::kFull, .layers = {0}, .kv_heads = 1, .key_dim = 4, .value_dim = 4};
    const Geometry geometry{.groups = {group}, .block_tokens = 4};
    NamespaceDigests name_space;
    name_space.id = NamespaceId{Sha256::Of("namespace")};
    name_space.tags[7] = Sha256::Of("tenant");
    const std::vector<TokenId> tokens = {TokenId(5), TokenId(6)};
    const std::vector<std::span<const std::byte>> payloads = {slot_};
    EncodedRecord out;
    EncodeRecord({name_space, GroupId(0), name_space.id.digest, 0, {}, tokens, payloads},
                 RecordShape::Of(geometry, GroupId(0)), sequence, Codec::kRaw, out);
    return out;
  }
  std::string WriteSegment(bool close) {
    auto writer = SegmentWriter::Create(RealFileSystem(), directory_, {.number = 7, .created_s = 1700000000});
    EXPECT_TRUE(writer.ok());
    for (uint64_t sequence = 1; sequence <= 2; ++sequence) {
      const EncodedRecord record = Tail(sequence);
      EXPECT_TRUE((*writer)->Append(record.header, record.decoded.record_bytes, record.pieces).ok());
    }
    EXPECT_TRUE((close ? (*writer)->Close() : (*writer)->Sync()).ok());
    return directory_ + "/" + SegmentName(7);
  }
  void Flip(const std::string& path, uint64_t offset) {
    auto file = *RealFileSystem().Open(path, FileSystem::Mode::kReadWrite);
    std::byte byte;
    ASSERT_EQ(*file->ReadAt(offset, std::span(&byte, 1)), 1u);
    byte ^= std::byte{1};
    const std::span<const std::byte> pieces[] = {std::span(&byte, 1)};
    ASSERT_TRUE(file->WriteAt(offset, pieces).ok());
  }

  // What it prints; the exit status is in status_.
  std::string Run(std::vector<std::string> arguments) {
    CLI::App app("test", "inspect");
    status_ = 0;
    AddInspectTierCommands(app, status_);
    std::reverse(arguments.begin(), arguments.end());
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    app.parse(arguments);
    error_ = testing::internal::GetCapturedStderr();
    return testing::internal::GetCapturedStdout();
  }

  const std::vector<std::byte> slot_ = std::vector<std::byte>(64, std::byte{42});
  std::string directory_, error_;
  int status_ = 0;
};

TEST_F(InspectTierTest, ASegmentIsListedWhole) {
  const std::string path = WriteSegment(true);
  EXPECT_THAT(Run({"segment", path}), HasSubstr("closed, with a footer"));
  EXPECT_EQ(status_, 0) << error_;
  const nlohmann::json json = nlohmann::json::parse(Run({"segment", path, "--json"}));
  EXPECT_EQ(json["records"].size(), 2u);
  EXPECT_EQ(json["end"], "footer");
  EXPECT_EQ(json["records"][1]["sequence"], 2);
  EXPECT_EQ(json["problems"].size(), 0u);
}

TEST_F(InspectTierTest, ARecordSaysWhatItIs) {
  const std::string path = WriteSegment(false);
  const nlohmann::json json = nlohmann::json::parse(Run({"record", path, "--offset", "64", "--json"}));
  EXPECT_EQ(status_, 0) << error_;
  EXPECT_EQ(json["fields"]["tenant"], "sha256:" + Sha256::Of("tenant").Hex());
  EXPECT_EQ(json["tokens"], nlohmann::json::parse("[5, 6]"));
  EXPECT_EQ(json["payloads"][0]["result"], "ok");
  EXPECT_THAT(Run({"record", path, "--offset", "64"}), HasSubstr("a tail of 2 tokens"));
}

TEST_F(InspectTierTest, ASegmentIsNotARecord) {
  const std::string path = WriteSegment(false);
  EXPECT_EQ(Run({"record", path}), "");
  EXPECT_EQ(status_, 2);
  EXPECT_THAT(error_, HasSubstr("--offset 64"));
}

TEST_F(InspectTierTest, DamageIsFoundAndHasStatus3) {
  const std::string path = WriteSegment(true);
  const uint64_t payload = kSegmentHeaderBytes + Tail(1).decoded.header_bytes + 3;
  for (uint64_t offset :
       {payload, uint64_t{20}, uint64_t{kSegmentHeaderBytes + 200}, std::filesystem::file_size(path) - 100}) {
    Flip(path, offset);
    Run({"segment", path});
    EXPECT_EQ(status_, 3) << offset;
    Flip(path, offset);
  }
  Run({"segment", path});
  EXPECT_EQ(status_, 0) << "control: " << error_;
  Flip(path, payload);
  EXPECT_THAT(Run({"record", path, "--offset", "64"}), HasSubstr("checksum_failed"));
  EXPECT_EQ(status_, 3);
  EXPECT_THAT(Run({"segment", path, "--json"}), HasSubstr("checksum_failed"));
}

TEST_F(InspectTierTest, ATornEndIsNoDamage) {
  const std::string path = WriteSegment(false);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 10);
  EXPECT_THAT(Run({"segment", path}), HasSubstr("did not arrive as a whole"));
  EXPECT_EQ(status_, 0) << error_;
}

TEST_F(InspectTierTest, ASegmentUnderAnothersNameIsNotWhatItSays) {
  const std::string path = WriteSegment(true);
  const std::string copy = directory_ + "/copy", other = directory_ + "/" + SegmentName(8);
  std::filesystem::copy_file(path, copy);
  std::filesystem::copy_file(path, other);
  Run({"segment", copy});
  EXPECT_EQ(status_, 0) << error_;
  Run({"segment", other});
  EXPECT_EQ(status_, 3);
}

}  // namespace
}  // namespace reprise
