#include "cli/start_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "base/bytes.h"
#include "tests/tiny_model.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMiB = 1 << 20;

// A machine that holds 4 MiB for each sequence, 1 for each waiting request and 1 for each 64 tokens, twice for f32.
bool ToyFits(const StartSettings& s) {
  const uint64_t tokens = s.context / 64 * (s.kv_type == ElementType::kF32 ? 2 : 1);
  return (s.sequences * 4 + s.queue_requests + tokens) * kMiB <= s.memory_bytes;
}

TEST(StartPlanTest, EverySettingNamedFitsAndDiffers) {
  for (uint64_t memory = 16; memory <= 1024; memory *= 2)
    for (const uint32_t context : {1024u, 8192u, 131072u})
      for (const ElementType type : {ElementType::kF16, ElementType::kF32}) {
        SCOPED_TRACE(testing::Message() << memory << " MiB, " << context << " tokens");
        const StartSettings asked{.memory_bytes = memory * kMiB, .context = context, .kv_type = type};
        if (ToyFits(asked)) continue;
        const auto settings = SettingsThatFit(asked, context, 64ull << 30, ToyFits, 3);
        EXPECT_EQ(settings.size(), 3u);
        for (size_t i = 0; i < settings.size(); ++i) {
          EXPECT_TRUE(ToyFits(settings[i])) << FlagsFor(settings[i], asked);
          EXPECT_NE(FlagsFor(settings[i], asked), "");
          for (size_t j = 0; j < i; ++j) EXPECT_FALSE(settings[i] == settings[j]);
        }
      }
}

TEST(StartPlanTest, NoMemoryBeyondTheMachineIsNamed) {
  const StartSettings asked{.memory_bytes = 64 * kMiB, .context = 8192};
  for (const StartSettings& s : SettingsThatFit(asked, 8192, 128 * kMiB, ToyFits, 3))
    EXPECT_LE(s.memory_bytes, 128 * kMiB);
  EXPECT_TRUE(SettingsThatFit(
                  asked, 8192, 8 * kMiB, [](const StartSettings&) { return false; }, 3)
                  .empty());
}

// A small model of which the file exists.
std::unique_ptr<ModelDescription> TinyDescription(ElementType type) {
  static const std::string path = [] {
    TinyOptions tiny;
    tiny.layers = 8;
    const std::string file = TestPath("start_plan.gguf");
    WriteFile(file, TinyModel(tiny).Bytes());
    return file;
  }();
  auto model = ModelDescription::Read(path, {.key_type = type, .value_type = type});
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

uint64_t SomeOtherBytes(const StartSettings& s, uint32_t context) {
  return (s.sequences + s.queue_requests) * (144ull << 10) + context * 64ull;
}

// The options with the flags of one line of advice.
LocalEngineOptions Applied(LocalEngineOptions options, const std::string& line) {
  std::istringstream words(line);
  for (std::string flag, value; words >> flag >> value;) {
    if (flag == "--memory") options.memory_bytes = *ParseBytes(value);
    if (flag == "--context") options.context = std::stoul(value);
    if (flag == "--sequences") options.sequences_max = std::stoul(value);
    if (flag == "--queue-requests") options.queue_requests_max = std::stoul(value);
    if (flag == "--kv-type") options.kv_type = value == "f16" ? ElementType::kF16 : ElementType::kF32;
  }
  return options;
}

TEST(StartPlanTest, WhatTheMessageSaysWorksWhenItIsTyped) {
  const MachineInfo machine{.memory_total_bytes = 8ull << 30, .memory_available_bytes = 8ull << 30};
  for (const uint64_t memory_mib : {64, 110, 180, 200})
    for (const ElementType type : {ElementType::kF16, ElementType::kF32}) {
      SCOPED_TRACE(testing::Message() << memory_mib << " MiB, " << Name(type));
      const auto model = TinyDescription(type);
      LocalEngineOptions options{
          .model_path = model->path, .memory_bytes = memory_mib * kMiB, .context = 4096, .threads = 2, .kv_type = type};
      options.shared_rows_max = 64;
      LocalEngineOptions tried = options;
      const auto plan = PlanStart(*model, tried, SomeOtherBytes, machine);
      if (plan.ok()) continue;
      const std::string message(plan.status().message());
      const std::string head = "settings that would work, each checked:\n";
      ASSERT_THAT(message, HasSubstr(head));
      std::istringstream lines(message.substr(message.find(head) + head.size()));
      int count = 0;
      for (std::string line; std::getline(lines, line); ++count) {
        LocalEngineOptions again = Applied(options, line);
        const auto other_model = TinyDescription(again.kv_type);
        EXPECT_TRUE(PlanStart(*other_model, again, SomeOtherBytes, machine).ok()) << line;
      }
      EXPECT_EQ(count, 3) << message;
    }
}

TEST(StartPlanTest, WishesThatCannotComeTrueAreNamed) {
  const MachineInfo machine{.memory_total_bytes = 8ull << 30, .memory_available_bytes = 8ull << 30};
  const auto model = TinyDescription(ElementType::kF16);
  LocalEngineOptions options{.model_path = model->path, .context = model->context_trained + 1};
  const auto long_context = PlanStart(*model, options, SomeOtherBytes, machine);
  EXPECT_TRUE(absl::IsInvalidArgument(long_context.status()));
  EXPECT_THAT(std::string(long_context.status().message()), HasSubstr("--context 4096 or less"));
  options = {.model_path = model->path, .memory_bytes = 9ull << 30};
  const auto memory = PlanStart(*model, options, SomeOtherBytes, machine);
  EXPECT_TRUE(absl::IsInvalidArgument(memory.status()));
  options.memory_bytes = 8ull << 30;
  EXPECT_TRUE(PlanStart(*model, options, SomeOtherBytes, machine).ok()) << "control: all of the machine is allowed";
}

}  // namespace
}  // namespace reprise
