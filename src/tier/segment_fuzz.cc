// Any bytes as a segment, as a footer, and as the list of purged tenants: an answer, never a crash, a hang or a large
// allocation; and closing what was cut gives a segment that says the same.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/check.h"
#include "env/memory_file_system.h"
#include "tier/disk_store_erased.h"
#include "tier/segment.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace reprise;
  const auto bytes = std::as_bytes(std::span(data, size));
  SegmentContents footer;
  (void)ReadFooter(bytes, kSegmentHeaderBytes, footer, [](const SegmentRecord&) {});  // either answer is right
  (void)DecodeErased(bytes);

  MemoryFileSystem files;
  CHECK(files.MakeDirectories("/d").ok());
  auto file = files.Open("/d/s", FileSystem::Mode::kCreate);
  CHECK(file.ok());
  // A right header more often than a fuzzer finds one.
  const std::array<std::byte, kSegmentHeaderBytes> header = EncodeSegmentHeader({.number = 1});
  const std::array<std::span<const std::byte>, 2> pieces = {std::span<const std::byte>(header), bytes};
  CHECK((*file)->WriteAt(0, pieces).ok());
  std::vector<uint64_t> sequences;
  const auto read = ReadSegment(**file, 1, /*trust_footer=*/true, [&](const SegmentRecord& record) {
    sequences.push_back(record.header.sequence);
    CHECK_LE(record.offset + record.header.record_bytes, size + kSegmentHeaderBytes);
  });
  CHECK(read.ok());
  if (read->end == SegmentEnd::kFooter || read->end == SegmentEnd::kForeign) return 0;
  auto writer = SegmentWriter::Resume(*std::move(file), 1, read->records_end);
  CHECK(writer.ok() && (*writer)->Close().ok());
  std::vector<uint64_t> again;
  const auto closed = ReadSegment((*writer)->file(), 1, /*trust_footer=*/true,
                                  [&](const SegmentRecord& record) { again.push_back(record.header.sequence); });
  CHECK(closed.ok() && closed->end == SegmentEnd::kFooter && again == sequences);
  return 0;
}
