#include "cli/disk_cache.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "tier/codec.h"

namespace reprise {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kAutoBytesMax = 100'000'000'000;
constexpr uint64_t kRoomBytesMin = 1'000'000'000;  // below, the disk is left to others
constexpr uint64_t kShare = 4;                     // of what is free and held: a quarter
// Fewer do not hold one prompt worth keeping.
constexpr uint64_t kBlocksMin = 64;

uint64_t SmallestBytes(const Geometry& geometry) {
  uint64_t block = 0;
  for (uint32_t g = 0; g < geometry.groups.size(); ++g) block += SlotBytes(geometry, GroupId(g));
  return kBlocksMin * block;
}

uint64_t FileBytes(FileSystem& files, const std::string& directory) {
  uint64_t bytes = 0;
  const absl::StatusOr<std::vector<std::string>> names = files.ListFiles(directory);
  if (!names.ok()) return 0;
  for (const std::string& name : *names) {
    const auto file = files.Open(directory + "/" + name, FileSystem::Mode::kRead);
    if (file.ok()) bytes += (*file)->Size().value_or(0);
  }
  return bytes;
}

// Why a directory cannot be made or written there; empty: it can.
std::string WhyNotWritable(const std::string& directory) {
  std::error_code error;
  fs::path place = fs::absolute(directory, error).lexically_normal();
  while (!fs::exists(place, error) && place.has_parent_path() && place != place.parent_path()) {
    place = place.parent_path();
  }
  if (!fs::is_directory(place, error)) return absl::StrCat(place.string(), " is not a directory");
  if (access(place.c_str(), W_OK | X_OK) != 0)
    return absl::StrCat("this user may not write to ", place.string(), "; --cache-dir DIR takes another place");
  return "";
}

void TurnOff(DiskChoice& choice, std::string why) {
  choice.options = {};
  choice.off = std::move(why);
  choice.as_asked = false;
}

// The cap from the room that there is.
void ChooseSize(FileSystem& files, DiskChoice& choice) {
  const absl::StatusOr<uint64_t> free = files.FreeBytes(choice.options.directory);
  if (!free.ok()) return TurnOff(choice, std::string(free.status().message()));
  const uint64_t room = *free + choice.held_bytes;
  if (room < kRoomBytesMin)
    return TurnOff(choice, absl::StrCat("only ", HumanBytes(*free), " are free in ", choice.options.directory,
                                        "; --cache-disk SIZE takes some of them all the same"));
  const bool most = room / kShare > kAutoBytesMax;
  choice.options.bytes_max = most ? kAutoBytesMax : room / kShare;
  choice.from = most ? "default, 100 GB at most; --cache-disk"
                     : "default, a quarter of what is free there and held already; --cache-disk";
}

absl::StatusOr<Codec> ParseCodec(const std::string& format) {
  if (format == "raw") return Codec::kRaw;
  if (format == "compressed") return Codec::kPlanes;
  return absl::InvalidArgumentError(absl::StrCat("--cache-format: '", format, "' is neither raw nor compressed"));
}

}  // namespace

void DiskFlags::AddTo(CLI::App& app, bool on) {
  on_by_default = on;
  app.add_option("--cache-dir", directory,
                 absl::StrCat("where the cache outlives the process (default: $XDG_CACHE_HOME/reprise/kv or "
                              "~/.cache/reprise/kv",
                              on ? ")" : ", and only with --cache-disk)"));
  app.add_option("--cache-disk", size,
                 absl::StrCat("what it may take there for this model: auto, off, or a size as in 20GiB (default: ",
                              on ? "auto)" : "off)"));
  app.add_option("--cache-format", format, "raw, or compressed: smaller and slower, the same bits")
      ->capture_default_str();
}

std::string CacheDirectory() {
  // A relative one is to be ignored, says the XDG base directory specification.
  if (const char* xdg = std::getenv("XDG_CACHE_HOME"); xdg != nullptr && xdg[0] == '/')
    return absl::StrCat(xdg, "/reprise/kv");
  if (const char* home = std::getenv("HOME"); home != nullptr && home[0] == '/')
    return absl::StrCat(home, "/.cache/reprise/kv");
  return "";
}

uint64_t HeldBytes(FileSystem& files, const std::string& directory) {
  uint64_t bytes = FileBytes(files, directory);
  const absl::StatusOr<std::vector<std::string>> models = files.ListDirectories(directory);
  if (!models.ok()) return bytes;
  for (const std::string& model : *models) bytes += FileBytes(files, directory + "/" + model);
  return bytes;
}

absl::StatusOr<DiskChoice> ChooseDisk(const DiskFlags& flags, const Geometry& geometry, FileSystem& files,
                                      const std::string& default_directory) {
  DiskChoice choice;
  const absl::StatusOr<Codec> codec = ParseCodec(flags.format);
  if (!codec.ok()) return codec.status();
  const bool unasked = !flags.on_by_default && flags.directory.empty() && flags.size.empty();
  if (flags.size == "off" || unasked) {
    choice.off = unasked ? "default" : "--cache-disk off";
    return choice;
  }
  choice.automatic = flags.size.empty() || flags.size == "auto";
  if (!choice.automatic) {
    const absl::StatusOr<uint64_t> bytes = ParseBytes(flags.size);
    if (!bytes.ok())
      return absl::InvalidArgumentError(
          absl::StrCat("--cache-disk: ", std::string(bytes.status().message()), "; or auto, or off"));
    if (const uint64_t least = SmallestBytes(geometry); *bytes < least)
      return absl::InvalidArgumentError(
          absl::StrCat("--cache-disk ", flags.size, " holds no prompt of this model: give ", HumanBytes(least),
                       " or more (", kBlocksMin, " blocks of ", geometry.block_tokens, " tokens), or off"));
    choice.options.bytes_max = *bytes;
    choice.from = "--cache-disk";
  }
  choice.options.codec = *codec;
  choice.options.directory = flags.directory.empty() ? default_directory : flags.directory;
  if (choice.options.directory.empty()) {
    TurnOff(choice, "neither XDG_CACHE_HOME nor HOME says where; --cache-dir DIR does");
    return choice;
  }
  if (std::string why = WhyNotWritable(choice.options.directory); !why.empty()) {
    TurnOff(choice, std::move(why));
    return choice;
  }
  choice.held_bytes = HeldBytes(files, choice.options.directory);
  if (choice.automatic) ChooseSize(files, choice);
  return choice;
}

absl::StatusOr<MemoryPlan> PlanStartWithDisk(const ModelDescription& model, LocalEngineOptions& options,
                                             const OtherBytes& other, const MachineInfo& machine, DiskChoice& choice) {
  options.disk = choice.options;
  if (options.disk.directory.empty() || !choice.automatic) return PlanStart(model, options, other, machine);
  LocalEngineOptions without = options;
  without.disk = {};
  absl::StatusOr<MemoryPlan> plain = PlanStart(model, without, other, machine);
  if (plain.ok()) {
    for (; options.disk.bytes_max >= kRoomBytesMin / kShare; options.disk.bytes_max /= 2) {
      LocalEngineOptions with = options;
      with.other_bytes = without.other_bytes;
      absl::StatusOr<MemoryPlan> plan = LocalEngine::Plan(model, with);
      if (!plan.ok() || plan->context < plain->context) continue;
      if (options.disk.bytes_max < choice.options.bytes_max)
        choice.from = "the memory lowered it, which its index takes some of; --cache-disk, --memory";
      choice.options.bytes_max = options.disk.bytes_max;
      options = std::move(with);
      return plan;
    }
    TurnOff(choice, "the memory does not hold its index besides; --memory, --cache-disk");
  }
  options = std::move(without);
  return plain;
}

}  // namespace reprise
