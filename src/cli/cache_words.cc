#include "cli/cache_words.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/bytes.h"
#include "base/text.h"

namespace reprise {
namespace {

using nlohmann::json;

// What is at "/a/b", or null.
const json& At(const json& object, const std::string& pointer) {
  static const json none;
  const json::json_pointer path(pointer);
  return object.is_object() && object.contains(path) ? object.at(path) : none;
}

uint64_t Count(const json& object, const std::string& pointer) {
  const json& value = At(object, pointer);
  return value.is_number_unsigned() ? value.get<uint64_t>() : 0;
}

std::string Text(const json& object, const std::string& pointer) {
  const json& value = At(object, pointer);
  return value.is_string() ? value.get<std::string>() : "";
}

// As JSON spells it: on one line, and with nothing that a terminal would obey.
std::string Spelled(const std::string& text) {
  std::string spelled = json(text).dump(-1, ' ', false, json::error_handler_t::replace);
  std::string out;
  for (const char c : spelled) {
    if (c == '\x7F') {
      out += "\\u007f";
    } else {
      out += c;
    }
  }
  return out;
}

std::string Unquoted(const std::string& text) {
  const std::string spelled = Spelled(text);
  return spelled.substr(1, spelled.size() - 2);
}

std::string Line(const std::string& name, const std::string& text) { return absl::StrFormat("%-12s%s\n", name, text); }

std::string Token(const json& token) { return absl::StrCat(Count(token, "/id"), " ", Spelled(Text(token, "/text"))); }

std::string ForkInWords(const json& fork) {
  std::string where =
      absl::StrCat("token ", WithCommas(Count(fork, "/at_token")), ", asked ", Token(At(fork, "/asked")));
  const bool parts = At(fork, "/cached").is_object();
  if (parts) absl::StrAppend(&where, ", cached ", Token(At(fork, "/cached")));
  std::string out = Line("where", where);
  absl::StrAppend(&out, Line("", absl::StrCat("  …", Unquoted(Text(fork, "/before")), "⟨here⟩",
                                              Unquoted(Text(fork, "/after")), "…")));
  if (parts) {
    absl::StrAppend(&out, Line("lost", absl::StrCat(WithCommas(Count(fork, "/lost_tokens")),
                                                    " cached tokens that are of no use here")));
  }
  return out;
}

std::string Pool(const json& bytes) {
  std::vector<std::string> parts;
  for (const char* state : {"reusable", "active", "held", "free"}) {
    const uint64_t count = Count(bytes, absl::StrCat("/", state));
    if (count > 0) parts.push_back(absl::StrCat(HumanBytes(count), " ", state));
  }
  return parts.empty() ? "empty" : absl::StrJoin(parts, ", ");
}

// A line or two for each tier.
std::string Tiers(const json& tiers) {
  std::string out;
  if (!tiers.is_object()) return out;
  for (const auto& [name, tier] : tiers.items()) {
    std::string text = absl::StrCat(WithCommas(Count(tier, "/blocks")), " blocks, ", HumanBytes(Count(tier, "/bytes")),
                                    " of ", HumanBytes(Count(tier, "/bytes_max")));
    if (At(tier, "/writable") == false) absl::StrAppend(&text, ", read only");
    const uint64_t read = Count(tier, "/operations/fetch/ok"), written = Count(tier, "/operations/store/ok");
    absl::StrAppend(&text, "; read ", WithCommas(read), read == 1 ? " block" : " blocks", ", wrote ",
                    WithCommas(written), written == 1 ? " record" : " records");
    if (const uint64_t damaged = Count(tier, "/damaged"); damaged > 0)
      absl::StrAppend(&text, ", found ", WithCommas(damaged), " damaged");
    absl::StrAppend(&out, Line(Unquoted(name), text));
    for (const char* operation : {"fetch", "store"}) {
      const std::string state = Text(tier, absl::StrCat("/breaker/", operation));
      if (!state.empty() && state != "closed")
        absl::StrAppend(&out, Line("", absl::StrCat("  ", operation, " left alone after failures (", Unquoted(state),
                                                    "): ", Unquoted(Text(tier, "/last_error")))));
    }
  }
  return out;
}

// What to do about a reason that has nothing to do with the prompt's text; docs/cache.md has all of them.
std::string_view AdviceFor(std::string_view reason) {
  struct Advice {
    std::string_view reason;
    std::string_view what;
  };
  static constexpr Advice kAdvice[] = {
      {"evicted", "a larger --memory of the server, or fewer long prompts that come once"},
      {"salt_differs", "the same `cache.salt`, if this is to be shared"},
      {"adapter_differs", "the same `lora` all through a conversation"},
      {"read_disabled", "leave out `cache.read`"},
      {"window_not_resident", "nothing: it goes on at the ends of prompts and turns"},
      {"still_being_computed", "ask again in a moment"},
  };
  for (const Advice& advice : kAdvice) {
    if (advice.reason == reason) return advice.what;
  }
  return "";
}

// "never_seen 12, evicted 3": the most frequent first.
std::string Misses(const json& misses) {
  std::vector<std::pair<uint64_t, std::string>> counted;
  if (misses.is_object()) {
    for (const auto& [reason, count] : misses.items()) {
      if (count.is_number_unsigned() && count != 0) counted.emplace_back(count.get<uint64_t>(), reason);
    }
  }
  std::sort(counted.rbegin(), counted.rend());
  return counted.empty() ? "none" : absl::StrJoin(counted, ", ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, entry.second, " ", WithCommas(entry.first));
  });
}

}  // namespace

std::string ExplainInWords(std::string_view text) {
  const json answer = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object()) return "";
  const json& receipt = At(answer, "/prefix_cache_receipt");
  const uint64_t reused = Count(receipt, "/hit/reusable_tokens"), computed = Count(receipt, "/hit/suffix_tokens");
  std::string out =
      Line("reused", absl::StrCat(WithCommas(reused), " of ", WithCommas(reused + computed), " tokens; ",
                                  WithCommas(computed), computed == 1 ? " has" : " have", " to be computed"));
  std::string last;  // the reason
  const json& misses = At(receipt, "/miss");
  if (misses.is_array()) {
    for (const json& miss : misses) {
      last = Text(miss, "/reason");
      absl::StrAppend(&out, Line("why", absl::StrCat(last, ": ", Text(miss, "/detail"))));
    }
  }
  const json& fork = At(receipt, "/fork");
  // For other reasons it is not the prompt's text that matters, and there is no place to show.
  if (!fork.is_object() || (last != "tokens_differ" && last != "never_seen")) {
    if (const std::string_view advice = AdviceFor(last); !advice.empty()) {
      absl::StrAppend(&out, Line("do", std::string(advice)));
    }
    return out;
  }
  absl::StrAppend(&out, ForkInWords(fork));
  if (const std::string summary = Text(fork, "/summary"); !summary.empty()) absl::StrAppend(&out, Line("so", summary));
  if (const std::string advice = Text(fork, "/advice"); !advice.empty()) absl::StrAppend(&out, Line("do", advice));
  return out;
}

std::string CacheStatsInWords(std::string_view text) {
  const json answer = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object()) return "";
  const json& rate = At(answer, "/kv_hit_rate");
  const json& tokens = At(answer, "/kv_tokens_total");
  uint64_t reused = 0;
  for (const char* tier : {"/pool", "/ram", "/disk", "/redis"}) reused += Count(tokens, tier);
  std::string out =
      Line("hit rate", absl::StrFormat("%.1f %%: %s of %s prompt tokens were not computed",
                                       rate.is_number() ? rate.get<double>() * 100 : 0.0, WithCommas(reused),
                                       WithCommas(reused + Count(tokens, "/computed"))));
  absl::StrAppend(&out, Line("ended by", Misses(At(answer, "/kv_miss_total"))));
  absl::StrAppend(&out, Line("pool", Pool(At(answer, "/pool_bytes"))));
  const json& groups = At(answer, "/groups");
  if (groups.is_array() && groups.size() > 1) {
    for (const json& group : groups) {
      const uint64_t window = Count(group, "/window");
      const std::string name = absl::StrCat(Text(group, "/kind"), window > 0 ? absl::StrCat(" ", window) : "");
      absl::StrAppend(&out, Line("", absl::StrFormat("  %-12s%s", name, Pool(At(group, "/pool_bytes")))));
    }
  }
  absl::StrAppend(&out, Tiers(At(answer, "/tiers")));
  absl::StrAppend(&out, Line("tree", absl::StrCat(WithCommas(Count(answer, "/nodes")), " blocks, ends of blocks ",
                                                  WithCommas(Count(answer, "/tails")), "; evicted ",
                                                  WithCommas(Count(answer, "/evicted_blocks")), ", computed twice ",
                                                  WithCommas(Count(answer, "/duplicate_seals")))));
  absl::StrAppend(&out, Line("now", absl::StrCat(WithCommas(Count(answer, "/sequences")), " running, ",
                                                 WithCommas(Count(answer, "/queue_depth")), " waiting with ",
                                                 WithCommas(Count(answer, "/queue_tokens")), " prompt tokens")));
  return out;
}

std::string PurgedInWords(std::string_view text) {
  const json answer = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object()) return "";
  const uint64_t blocks = Count(answer, "/purged/blocks"), pinned = Count(answer, "/purged/pinned"),
                 on_disk = Count(answer, "/purged/disk_blocks");
  return absl::StrCat(
      "forgot ", WithCommas(blocks), blocks == 1 ? " block" : " blocks",
      on_disk > 0 ? absl::StrCat(", and ", WithCommas(on_disk), " on disk") : "",
      pinned > 0 ? absl::StrCat("; ", WithCommas(pinned), " more when the requests that use them end") : "", "\n");
}

}  // namespace reprise
