// Numbers that stand for the prefixes of a prompt in a recorded trace (planner/trace.h): one for every
// kPrefixIdTokens tokens, the last one for what is left. Equal prefixes of one tenant have equal numbers in the life
// of a server; a key drawn at its start keeps a reader of the log from testing guesses of what was asked.
//
// Ownership: values. Threads: any. Errors: none.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/identity.h"
#include "base/ids.h"

namespace reprise {

inline constexpr uint32_t kPrefixIdTokens = 512;

// Below 2^53, exact in every reader of JSON.
std::vector<uint64_t> PrefixIds(const Digest& key, const Scope& scope, std::span<const TokenId> tokens);

}  // namespace reprise
