#include "model/weights.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "tests/gguf_writer.h"
#include "tests/tiny_model.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

std::string WriteTiny(const std::string& name, const TinyOptions& options) {
  const std::string path = TestPath(name);
  WriteFile(path, TinyModel(options).Bytes());
  return path;
}

std::unique_ptr<ModelDescription> Describe(const std::string& path) {
  auto model = ModelDescription::Read(path, {});
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

absl::Status LoadStatus(const ModelDescription& model, const ModelWeights::Progress& progress = {}) {
  Ledger ledger(uint64_t{1} << 30);
  WorkerPool pool(2);
  return ModelWeights::Load(model, pool, ledger, progress).status();
}

TEST(WeightsTest, TakesItsFootprintAndNoMore) {
  const auto model = Describe(WriteTiny("footprint.gguf", {.tied = false}));
  Ledger ledger(uint64_t{1} << 30);
  WorkerPool pool(2);
  uint64_t most = 0;
  const auto weights =
      ModelWeights::Load(*model, pool, ledger, [&](double) { most = std::max(most, ledger.taken_bytes()); });
  ASSERT_TRUE(weights.ok()) << weights.status();
  const uint64_t planned = ModelWeights::Footprints(*model)[0].bytes;
  EXPECT_EQ(ledger.taken_bytes(), planned);
  EXPECT_EQ(most, planned + ModelWeights::StagingBytes(*model, 2));
}

TEST(WeightsTest, ProgressGrowsToOne) {
  const auto model = Describe(WriteTiny("progress.gguf", {}));
  std::vector<double> seen;
  ASSERT_TRUE(LoadStatus(*model, [&](double fraction) { seen.push_back(fraction); }).ok());
  ASSERT_FALSE(seen.empty());
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_EQ(seen.back(), 1.0);
}

// Packed and unpacked again, a matrix is what the file says; the embedding is the head when tied.
TEST(WeightsTest, MatricesSurvivePacking) {
  for (const WeightType type : {WeightType::kQ4_K, WeightType::kQ8_0, WeightType::kF16}) {
    const TinyOptions options = {.type = type, .embedding_type = type, .layers = 1};
    GgufWriter writer = TinyModel(options);
    const std::string path = TestPath("packing.gguf");
    WriteFile(path, writer.Bytes());
    const auto model = Describe(path);
    Ledger ledger(uint64_t{1} << 30);
    WorkerPool pool(2);
    const auto weights = ModelWeights::Load(*model, pool, ledger, {});
    ASSERT_TRUE(weights.ok()) << weights.status();
    const std::string& data = writer.FindTensor("token_embd.weight")->data;
    const uint64_t row_bytes = data.size() / options.vocab;
    std::vector<float> want(options.width);
    std::vector<float> got(options.width);
    for (uint32_t row = 0; row < options.vocab; ++row) {
      DequantizeRow(type, reinterpret_cast<const std::byte*>(data.data()) + row * row_bytes, want);
      DequantizePackedRow((*weights)->embedding(), row, got);
      ASSERT_EQ(want, got) << row;
    }
    EXPECT_EQ((*weights)->head().data, (*weights)->embedding().data);
  }
}

// A file that changes while it is open gives an error that says so. The control: it does not change.
class ChangingFileTest : public ::testing::Test {
 protected:
  ChangingFileTest() : path_(WriteTiny("changing.gguf", {})), model_(Describe(path_)) {}
  const std::string path_;
  const std::unique_ptr<ModelDescription> model_;
};

TEST_F(ChangingFileTest, UnchangedIsLoaded) { EXPECT_TRUE(LoadStatus(*model_).ok()); }

TEST_F(ChangingFileTest, ReplacedBeforeLoading) {
  const std::string other = WriteTiny("other.gguf", {.seed = 2});
  std::filesystem::rename(other, path_);
  const absl::Status status = LoadStatus(*model_);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("changed while it was being read"));
}

TEST_F(ChangingFileTest, RewrittenInPlaceWithItsOldTime) {
  struct stat before;
  ASSERT_EQ(stat(path_.c_str(), &before), 0);
  WriteFile(path_, TinyModel({.seed = 2}).Bytes());
  const timespec times[2] = {before.st_atim, before.st_mtim};
  ASSERT_EQ(utimensat(AT_FDCWD, path_.c_str(), times, 0), 0);
  EXPECT_EQ(LoadStatus(*model_).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ChangingFileTest, WrittenWhileLoading) {
  bool written = false;
  const absl::Status status = LoadStatus(*model_, [&](double) {
    if (!written) WriteFile(path_, TinyModel({.seed = 2}).Bytes());
    written = true;
  });
  EXPECT_TRUE(written);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ChangingFileTest, TruncatedWhileLoading) {
  const absl::Status status = LoadStatus(*model_, [&](double) { ASSERT_EQ(truncate(path_.c_str(), 1000), 0); });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ChangingFileTest, RemovedBeforeLoading) {
  std::filesystem::remove(path_);
  EXPECT_EQ(LoadStatus(*model_).code(), absl::StatusCode::kNotFound);
}

TEST(ModelFileTest, OnlyRegularFilesAreOpened) {
  EXPECT_EQ(ModelFile::Open(TestPath("absent.gguf")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ModelFile::Open(std::filesystem::temp_directory_path()).status().code(),
            absl::StatusCode::kInvalidArgument);
  const std::string pipe = TestPath("pipe.gguf");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(ModelFile::Open(pipe).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace reprise
