// Pages of memory before their first use.
//
// Threads: any. Errors: none that matter: what a system does not give here it gives at the first use.
#pragma once

#include <cstddef>
#include <span>

namespace reprise {

// The system zeroes a page when it is touched for the first time: 0.1 ms and more for a huge page, and 4 ms where a
// virtual machine has to ask its host. After this, `memory` has its pages; no byte of it changes, even beside threads
// that write to it. False: the system cannot, or has none left.
bool PopulatePages(std::span<std::byte> memory);

}  // namespace reprise
