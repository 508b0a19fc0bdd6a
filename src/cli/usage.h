// What to say to a command line that cannot be understood: the nearest flag or command, or the name that
// another server's flag has here.
//
// Ownership: values. Threads: any. Errors: none.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace reprise {

// The candidate with the fewest edits from `text`; empty if more than half of it would have to change.
std::string Nearest(std::string_view text, const std::vector<std::string>& candidates);

// One or two lines without the program's name. `arguments`: as typed, without argv[0].
std::string ExplainUsage(const CLI::App& app, const CLI::ParseError& error, const std::vector<std::string>& arguments);

}  // namespace reprise
