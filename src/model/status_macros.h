// Hands an error on to the caller; the value, or nothing, otherwise. For this folder's .cc files.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define RETURN_IF_ERROR(expression)              \
  do {                                           \
    absl::Status status_or_ok = (expression);    \
    if (!status_or_ok.ok()) return status_or_ok; \
  } while (false)

#define REPRISE_JOIN_AGAIN(a, b) a##b
#define REPRISE_JOIN(a, b) REPRISE_JOIN_AGAIN(a, b)
#define ASSIGN_OR_RETURN(left, expression) REPRISE_ASSIGN_OR_RETURN(REPRISE_JOIN(result_, __LINE__), left, expression)
#define REPRISE_ASSIGN_OR_RETURN(result, left, expression) \
  auto result = (expression);                              \
  if (!result.ok()) return result.status();                \
  left = *std::move(result)
