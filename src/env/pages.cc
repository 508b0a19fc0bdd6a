#include "env/pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

namespace reprise {

bool PopulatePages(std::span<std::byte> memory) {
  if (memory.empty()) return true;
#ifdef MADV_POPULATE_WRITE
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(memory.data()) / page * page;
  const auto end = reinterpret_cast<uintptr_t>(memory.data() + memory.size());
  return madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_WRITE) == 0;
#else
  return false;
#endif
}

}  // namespace reprise
