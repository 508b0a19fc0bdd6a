// How much of a busy machine a thread gets.
//
// Threads: of the calling one. Errors: none; a system that refuses leaves it as it is.
#pragma once

namespace reprise {

// The calling thread gives way to threads of normal priority (nice 10 on Linux): for work that nobody waits for.
void LowerThreadPriority();

}  // namespace reprise
