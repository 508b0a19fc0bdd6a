// Any bytes as a model file: an answer, never a crash, a hang or a large allocation. Run with
// -malloc_limit_mb=256 and, as seeds, files that the tests write (docs/hacking.md).
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "model/description.h"
#include "tests/gguf_writer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const reprise::MemorySource source({reinterpret_cast<const char*>(data), size});
  reprise::ModelDescription model;
  (void)reprise::Describe(source, {}, model);  // either answer is right
  return 0;
}
