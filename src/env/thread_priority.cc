#include "env/thread_priority.h"

#include <sys/resource.h>
#include <unistd.h>

namespace reprise {

void LowerThreadPriority() {
  // On Linux a thread is a process of its own to setpriority; 0 is the calling one.
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 10);
}

}  // namespace reprise
