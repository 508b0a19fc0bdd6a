#include "tier/disk_tier.h"

#include <algorithm>
#include <utility>

#include "tier/codec.h"
#include "tier/disk_store.h"
#include "tier/threaded_tier.h"

namespace reprise {
namespace {

DiskStoreOptions StoreFor(const DiskTierOptions& options, const Geometry& geometry) {
  // As many blocks as fit, if all were of the smallest group; the index takes a few hundred bytes for each.
  constexpr uint64_t kBlocksMin = 1 << 10, kBlocksMax = 1 << 18;
  uint64_t slot_bytes = UINT64_MAX;
  for (uint32_t g = 0; g < geometry.groups.size(); ++g)
    slot_bytes = std::min(slot_bytes, SlotBytes(geometry, GroupId(g)));
  return {.directory = options.directory,
          .geometry = geometry,
          .bytes_max = options.bytes_max,
          .blocks_max = static_cast<uint32_t>(std::clamp(options.bytes_max / slot_bytes, kBlocksMin, kBlocksMax)),
          .codec = options.codec,
          .files = options.files};
}

ThreadedTierOptions ThreadsFor(const DiskTierOptions& options, const Geometry& geometry) {
  ThreadedTierOptions threads{.readers = kDiskTierReaders, .log = options.log};
  for (uint32_t g = 0; g < geometry.groups.size(); ++g)
    threads.slot_bytes_max = std::max(threads.slot_bytes_max, SlotBytes(geometry, GroupId(g)));
  return threads;
}

}  // namespace

std::vector<Footprint> DiskTierFootprints(const DiskTierOptions& options, const Geometry& geometry) {
  std::vector<Footprint> lines = ThreadedTierFootprints("disk", ThreadsFor(options, geometry));
  lines.push_back(DiskStore::FootprintOf(StoreFor(options, geometry)));
  return lines;
}

absl::StatusOr<DiskTier> OpenDiskTier(const DiskTierOptions& options, const Geometry& geometry, Ledger& ledger) {
  absl::StatusOr<DiskStore::Opened> opened = DiskStore::Open(StoreFor(options, geometry), ledger);
  if (!opened.ok()) return opened.status();
  return DiskTier{.tier = MakeThreadedTier(ThreadsFor(options, geometry), std::move(opened->store), ledger),
                  .read_only = opened->read_only,
                  .cut_bytes = opened->cut_bytes,
                  .foreign_records = opened->foreign_records,
                  .damaged_records = opened->damaged_records,
                  .seconds = opened->seconds};
}

}  // namespace reprise
