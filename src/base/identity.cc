#include "base/identity.h"

#include "base/check.h"

namespace reprise {

std::string_view Name(NamespaceTag tag) {
  switch (tag) {
    case NamespaceTag::kModel:
      return "model";
    case NamespaceTag::kTokenizer:
      return "tokenizer";
    case NamespaceTag::kAdapters:
      return "adapters";
    case NamespaceTag::kPosition:
      return "position";
    case NamespaceTag::kAttention:
      return "attention";
    case NamespaceTag::kGeometry:
      return "geometry";
    case NamespaceTag::kNumerics:
      return "numerics";
    case NamespaceTag::kTenant:
      return "tenant";
    case NamespaceTag::kEpoch:
      return "epoch";
    case NamespaceTag::kSalt:
      return "salt";
  }
  CHECK(false);
}

}  // namespace reprise
