// Counts calls of operator new in the whole process, once a test refers to it.
//
// Threads: any.
#pragma once

#include <cstdint>

namespace reprise {

uint64_t AllocationCount();

}  // namespace reprise
