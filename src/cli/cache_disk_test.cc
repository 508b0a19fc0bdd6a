#include "cli/cache_disk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "env/memory_file_system.h"
#include "prefix/namespace.h"
#include "tier/disk_store_testing.h"
#include "tier/segment.h"

namespace reprise {
namespace {

using disk_testing::Prompt;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kRoot[] = "/cache";
const std::string kModel = disk_testing::kDirectory;  // "/cache/disk"

// As the engine makes it for a tenant.
NamespaceDigests Of(const std::string& tenant, std::optional<std::string> salt = std::nullopt) {
  return DeriveNamespace({}, disk_testing::SmallGeometry(), {.tenant = tenant, .salt = std::move(salt)});
}

class CacheDiskTest : public ::testing::Test {
 protected:
  // 2 blocks and an end for "default", 1 block for "team" with a salt, in both groups.
  void Fill() {
    auto store = disk_testing::OpenStore(disk_testing::SmallOptions(files_));
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_TRUE(WritePrompt(**store, default_).ok());
    ASSERT_TRUE(WritePrompt(**store, team_).ok());
  }
  json Json(absl::Status (*command)(const CacheDisk&, std::string&)) {
    std::string out;
    const absl::Status status = command({files_, kRoot, true}, out);
    EXPECT_TRUE(status.ok()) << status;
    return json::parse(out);
  }
  std::string List() {
    std::string out;
    EXPECT_TRUE(ListCache(disk_, 1700000000 + 7200, out).ok());
    return out;
  }
  std::string Erase(const std::string& scope) {
    std::string out;
    const absl::Status status = EraseCache(disk_, scope, out);
    EXPECT_TRUE(status.ok()) << status;
    return out;
  }
  static void NoProgress(double) {}

  MemoryFileSystem files_;
  const CacheDisk disk_{files_, kRoot};
  const Prompt default_{Of("default"), {1, 2, 3, 4, 5, 6, 7, 8, 9}};
  const Prompt team_{Of("team", "salt"), {1, 2, 3, 4}};
};

TEST_F(CacheDiskTest, StatCountsWhatIsThere) {
  Fill();
  const json model = Json(StatCache)["models"][0];
  EXPECT_EQ(model["model"], "disk");
  EXPECT_EQ(model["blocks"], 6);
  EXPECT_EQ(model["tails"], 2);
  EXPECT_EQ(model["tokens"], 13) << "of one group: a token is a token";
  EXPECT_EQ(model["namespaces"], 2);
  EXPECT_EQ(model["segments"], 1);
  EXPECT_EQ(model["bytes"], disk_testing::DirectoryBytes(files_));
  std::string out;
  ASSERT_TRUE(StatCache(disk_, out).ok());
  EXPECT_THAT(out, HasSubstr("holds       13 tokens in 6 blocks and 2 ends of blocks\n"));
}

TEST_F(CacheDiskTest, ADirectoryOfOneModelMayBeNamedItself) {
  Fill();
  std::string out;
  ASSERT_TRUE(StatCache({files_, kModel}, out).ok());
  EXPECT_THAT(out, HasSubstr("13 tokens"));
}

TEST_F(CacheDiskTest, ListNamesWhoseItIsAndHowOld) {
  Fill();
  const std::string list = List();
  const std::string team = Of("team").tag(NamespaceTag::kTenant)->Hex();
  EXPECT_THAT(list, HasSubstr(" default "));
  EXPECT_THAT(list, HasSubstr(team.substr(0, 12)));
  EXPECT_THAT(list, HasSubstr("2 h ago"));
  EXPECT_THAT(list, HasSubstr("salt\n"));
  std::string out;
  ASSERT_TRUE(ListCache({files_, kRoot, true}, 0, out).ok());
  const json namespaces = json::parse(out)["models"][0]["namespaces"];
  ASSERT_EQ(namespaces.size(), 2u);
  EXPECT_EQ(namespaces[0]["scope"], "default") << "the largest first";
  EXPECT_EQ(namespaces[0]["tokens"], 9);
  EXPECT_EQ(namespaces[1]["tenant"], team);
  EXPECT_EQ(namespaces[0]["salt"], nullptr);
  EXPECT_NE(namespaces[1]["salt"], nullptr);
  for (const json& each : namespaces) EXPECT_EQ(each["adapters"], nullptr);
}

TEST_F(CacheDiskTest, VerifyNamesFileOffsetAndWhat) {
  Fill();
  std::string out;
  double last = 0;
  const auto progress = [&last](double fraction) {
    EXPECT_GE(fraction, last);
    last = fraction;
  };
  ASSERT_TRUE(VerifyCache(disk_, progress, out).ok()) << out;
  EXPECT_EQ(last, 1.0);
  EXPECT_THAT(out, HasSubstr("damaged     nothing\n"));

  const std::string path = kModel + "/" + SegmentName(1);
  std::vector<std::byte> bytes = disk_testing::FileBytes(files_, path);
  bytes[bytes.size() / 4] ^= std::byte{1};
  disk_testing::PutFile(files_, path, bytes);
  out.clear();
  const absl::Status status = VerifyCache(disk_, NoProgress, out);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(out, HasSubstr("damaged     " + path + " at "));
  out.clear();
  EXPECT_TRUE(absl::IsDataLoss(VerifyCache({files_, kRoot, true}, NoProgress, out)));
  EXPECT_EQ(json::parse(out)["models"][0]["problems"][0]["file"], path) << "the JSON is whole all the same";
}

TEST_F(CacheDiskTest, PurgeForgetsOneScopeByNameOrDigits) {
  Fill();
  const std::string team = Of("team").tag(NamespaceTag::kTenant)->Hex();
  EXPECT_THAT(Erase("nobody"), HasSubstr("nothing of the scope 'nobody'"));
  EXPECT_THAT(Erase(team.substr(0, 8)), HasSubstr("2 blocks gone"));
  EXPECT_THAT(List(), Not(HasSubstr(team.substr(0, 12))));
  EXPECT_THAT(List(), HasSubstr(" default ")) << "the control";
  EXPECT_THAT(Erase("default"), Not(HasSubstr("nothing of")));
  EXPECT_THAT(List(), Not(HasSubstr(" default ")));
}

TEST_F(CacheDiskTest, GcTakesWhatIsAboveTheLimit) {
  Fill();
  std::string out;
  ASSERT_TRUE(CollectCache(disk_, UINT64_MAX, out).ok());
  EXPECT_THAT(List(), HasSubstr(" default "));
  ASSERT_TRUE(CollectCache(disk_, 100, out).ok());
  EXPECT_THAT(List(), Not(HasSubstr(" default ")));
}

TEST_F(CacheDiskTest, WhileAServerHasItNothingIsChanged) {
  Fill();
  const auto server = disk_testing::OpenStore(disk_testing::SmallOptions(files_));
  ASSERT_TRUE(server.ok());
  std::string out;
  for (const absl::Status& status : {EraseCache(disk_, "default", out), CollectCache(disk_, 100, out)}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr("a server is using"));
  }
  EXPECT_THAT(List(), HasSubstr(" default "));
  EXPECT_TRUE(VerifyCache(disk_, NoProgress, out).ok()) << "reading is no matter";
}

TEST_F(CacheDiskTest, NothingIsSaidPlainly) {
  for (const char* word : {"does not exist", "is empty"}) {
    std::string out;
    EXPECT_TRUE(StatCache(disk_, out).ok());
    EXPECT_TRUE(VerifyCache(disk_, NoProgress, out).ok());
    EXPECT_TRUE(CollectCache(disk_, 0, out).ok());
    EXPECT_TRUE(EraseCache(disk_, "default", out).ok());
    EXPECT_THAT(out, HasSubstr(word));
    EXPECT_EQ(Json(StatCache)["models"], json::array());
    ASSERT_TRUE(files_.MakeDirectories(kRoot).ok());
  }
}

}  // namespace
}  // namespace reprise
