// A completion on its way from bytes to the engine.
//
// Ownership: a value; exchange and model are shared.
// Threads:   one at a time: made on the I/O thread, read and prepared on a request thread, begun on the I/O thread.
// Errors:    as RequestError, naming the field at fault.
// Design:    docs/http.md
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/api.h"
#include "server/prompt_builder.h"
#include "server/receipt.h"
#include "server/request.h"

namespace reprise {

JsonLimits JsonLimitsOf(const ServerLimits& limits, const ServedModel& model);

// Whether `*name` is served; empty becomes the default.
MaybeError CheckModel(const ServedModel& model, bool any_model, std::string* name);

struct CompletionJob {
  Endpoint endpoint = Endpoint::kText;
  HttpRequest http;
  std::shared_ptr<HttpExchange> exchange;
  std::shared_ptr<const ServedModel> model;
  std::string id;
  std::string tenant;
  std::chrono::steady_clock::time_point received;
  CompletionRequest request;
  BuiltPrompt prompt;
  GenerationRequest generation;
  ReceiptFacts receipt;
  std::string echo;
  std::vector<uint64_t> prefix_ids;
  std::vector<BodyBudget::Charge> charges;
  MaybeError error;

  // On a request thread: everything up to the generation.
  MaybeError Prepare(const ApiOptions& options, const std::shared_ptr<BodyBudget>& grammars);
  // The same checks and the same prompt for a body of either endpoint that is explained and not run. The text of the
  // prompt stays in `prompt.chat`.
  MaybeError PrepareToExplain(const ApiOptions& options);
  // Body and charges, before an answer is seen: another thread may hold the job for a moment longer.
  void GiveBack();

 private:
  // What lives as long as the reply, against its budget.
  MaybeError ChargeEcho(const ServerLimits& limits);
  MaybeError ChargeGrammar(const ServerLimits& limits, const std::shared_ptr<BodyBudget>& grammars);
  // The engine's own check, for what it is not asked to run.
  MaybeError CheckLength() const;
  void MakeGeneration();
  void MakeReceipt();
};

}  // namespace reprise
