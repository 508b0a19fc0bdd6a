#include "model/battery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cfenv>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "tests/gguf_writer.h"
#include "tests/tiny_model.h"

namespace reprise {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const std::vector<std::string> kChecks = {
    "add",          "attention/bf16", "attention/f16", "attention/f32", "cap",          "gelu",         "norm",
    "product/BF16", "product/F16",    "product/F32",   "product/Q4_0",  "product/Q4_1", "product/Q4_K", "product/Q5_0",
    "product/Q5_1", "product/Q5_K",   "product/Q6_K",  "product/Q8_0",  "rope",         "silu"};

void Describe(const TinyOptions& options, ModelDescription& model) {
  const std::string bytes = TinyModel(options).Bytes();
  ASSERT_TRUE(Describe(MemorySource(bytes), {}, model).ok());
}

// With REPRISE_RECORD=1, after a change of the numerics version: prints the rows of battery_table.cc.
TEST(BatteryTest, EveryCheckIsRecorded) {
  std::vector<std::string> recorded;
  for (const RecordedResult& result : RecordedResults()) recorded.emplace_back(result.check);
  if (std::getenv("REPRISE_RECORD") != nullptr) {
    for (const std::string& check : kChecks)
      std::printf("    {\"%s\", \"%s\"},\n", check.c_str(), RunCheck(check, {nullptr, Isa::kPortable}).Hex().c_str());
  }
  EXPECT_EQ(recorded, kChecks);
}

TEST(BatteryTest, EveryInstructionSetAndThreadCountGivesTheRecordedResults) {
  for (const RecordedResult& result : RecordedResults()) {
    for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
      if (!Supported(isa)) continue;
      EXPECT_EQ(RunCheck(result.check, {nullptr, isa}).Hex(), result.hex) << result.check << " " << Name(isa);
      WorkerPool pool(3);
      EXPECT_EQ(RunCheck(result.check, {&pool, isa}).Hex(), result.hex) << result.check << " " << Name(isa);
    }
  }
}

TEST(BatteryTest, ChecksAreThoseOfTheModelsKernels) {
  ModelDescription llama, gemma;
  Describe({.type = WeightType::kQ4_K, .embedding_type = WeightType::kQ6_K}, llama);
  Describe({.family = Family::kGemma3, .type = WeightType::kQ8_0}, gemma);
  EXPECT_THAT(ChecksOf(llama),
              ::testing::ElementsAre("add", "attention/f16", "norm", "product/Q4_K", "product/Q6_K", "rope", "silu"));
  EXPECT_THAT(ChecksOf(gemma), Contains("gelu"));
  ModelDescription foreign;
  Describe({.type = static_cast<WeightType>(20)}, foreign);  // IQ4_NL, through ggml
  EXPECT_THAT(ChecksOf(foreign), Contains("ggml/iq4_nl"));
  EXPECT_THAT(ChecksOf(foreign), ::testing::Not(Contains("product/iq4_nl")));
}

TEST(BatteryTest, AsRecordedJoinsNothing) {
  ModelDescription model;
  Describe({}, model);
  const BatteryReport report = RunBattery(model, {nullptr, BestIsa()});
  EXPECT_EQ(report.checks, ChecksOf(model).size());
  EXPECT_THAT(report.different, IsEmpty());
  EXPECT_EQ(report.numerics, "");
}

TEST(BatteryTest, AnotherResultIsNamedAndJoinsTheNumerics) {
  ModelDescription model;
  Describe({}, model);
  std::vector<RecordedResult> other(RecordedResults().begin(), RecordedResults().end());
  for (RecordedResult& result : other)
    if (result.check == "norm") result.hex = "00";
  const BatteryReport report = RunBattery(model, {nullptr, BestIsa()}, other);
  EXPECT_THAT(report.different, ::testing::ElementsAre("norm"));
  EXPECT_THAT(report.numerics, ::testing::MatchesRegex("/battery=[0-9a-f]+"));
  EXPECT_EQ(report.numerics, RunBattery(model, {nullptr, Isa::kPortable}, other).numerics);
}

// Their bits are those of a build of ggml on a CPU: another one has another identity.
TEST(BatteryTest, ResultsOfGgmlAreAPartOfTheIdentityAndNoFault) {
  for (const uint32_t type : {20u, 10u, 11u, 23u}) {  // IQ4_NL, Q2_K, Q3_K, IQ4_XS
    ModelDescription model;
    Describe({.type = static_cast<WeightType>(type)}, model);
    const BatteryReport report = RunBattery(model, {nullptr, BestIsa()});
    EXPECT_THAT(report.different, IsEmpty());
    EXPECT_EQ(report.checks, ChecksOf(model).size() - 1);
    EXPECT_THAT(report.numerics, ::testing::MatchesRegex("/battery=[0-9a-f]+"));
    WorkerPool pool(2);
    EXPECT_EQ(report.numerics, RunBattery(model, {&pool, Isa::kPortable}).numerics);
    std::fesetround(FE_UPWARD);
    const std::string other = RunBattery(model, {nullptr, BestIsa()}).numerics;
    std::fesetround(FE_TONEAREST);
    EXPECT_NE(report.numerics, other);
  }
}

// What really happens: a library or a flag that changes how this process computes.
TEST(BatteryTest, AnotherFloatingPointEnvironmentIsSeen) {
  ModelDescription model;
  Describe({.type = WeightType::kQ4_K, .embedding_type = WeightType::kQ6_K}, model);
  const size_t checks = ChecksOf(model).size();
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  const BatteryReport upward = RunBattery(model, {nullptr, BestIsa()});
  std::fesetround(FE_TONEAREST);
  EXPECT_THAT(upward.different, SizeIs(checks));
#if defined(__x86_64__)
  _MM_SET_FLUSH_ZERO_MODE(_MM_FLUSH_ZERO_ON);
  _mm_setcsr(_mm_getcsr() | 0x40);  // and inputs that are denormal
  const BatteryReport flushed = RunBattery(model, {nullptr, BestIsa()});
  _mm_setcsr(_mm_getcsr() & ~0x40u);
  _MM_SET_FLUSH_ZERO_MODE(_MM_FLUSH_ZERO_OFF);
  EXPECT_THAT(flushed.different, Contains("norm"));
  EXPECT_THAT(flushed.different, Contains("add"));
  EXPECT_NE(flushed.numerics, upward.numerics);
#endif
  EXPECT_THAT(RunBattery(model, {nullptr, BestIsa()}).different, IsEmpty()) << "the control";
}

TEST(BatteryTest, IsCheap) {
  ModelDescription model;
  Describe({.family = Family::kGemma3, .type = WeightType::kQ4_K, .embedding_type = WeightType::kQ6_K}, model);
  const auto start = std::chrono::steady_clock::now();
  RunBattery(model, {nullptr, BestIsa()});
  const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  std::printf("the battery took %.2f ms\n", ms);
  EXPECT_LT(ms, 500);  // ten times the bound, for machines that are busy or build without optimisation
}

}  // namespace
}  // namespace reprise
