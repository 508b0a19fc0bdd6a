// AttendReference with another partition size: the control that shows that the size is part of the bits.
#pragma once

#include "attention/attention.h"

namespace reprise {

void AttendReferencePartitions(const AttentionShape& shape, const KvLayerView& kv, std::span<const SlotId> table,
                               uint32_t position, uint32_t query_head, uint32_t partition_tokens, const float* q_head,
                               float* out);

}  // namespace reprise
