// The subcommand `trace` of `reprise bench`.
#pragma once

#include <CLI/CLI.hpp>

namespace reprise {

void AddBenchTraceCommand(CLI::App& bench, int& status);

}  // namespace reprise
