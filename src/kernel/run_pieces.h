// Runs pieces on the pool of a Compute, or in the calling thread when it has none.
#pragma once

#include <cstdint>

#include "kernel/isa.h"

namespace reprise {

inline uint32_t Threads(const Compute& compute) { return compute.pool != nullptr ? compute.pool->threads() : 1; }

// body(piece, worker) for every piece; worker < Threads(compute).
template <class Body>
void RunPieces(const Compute& compute, uint32_t pieces, Body&& body) {
  if (compute.pool != nullptr) return compute.pool->Run(pieces, body);
  for (uint32_t piece = 0; piece < pieces; ++piece) body(piece, 0u);
}

}  // namespace reprise
