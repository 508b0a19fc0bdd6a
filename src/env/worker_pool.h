// Compute workers for parallel-for, and nothing else. Workers claim small pieces from an atomic
// counter, so a descheduled one holds back a single piece; waiting threads spin for microseconds,
// then sleep on a futex, so a busy neighbour slows us in proportion instead of stopping us.
//
// Ownership: owns threads - 1 threads; the caller of Run is the last worker.
// Threads:   Run is called by one thread at a time, never from inside a piece.
// Errors:    none. Pieces must not throw.
// Design:    DESIGN 3, COMPUTE 3 (measurements)
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

namespace reprise {

class WorkerPool {
 public:
  // REQUIRES: 1 <= threads <= 256.
  explicit WorkerPool(uint32_t threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  uint32_t threads() const;

  // Calls body(piece, worker) once for every piece in [0, pieces), worker < threads(): each worker
  // runs one piece at a time, so `worker` indexes scratch. Returns when all are done; what they wrote
  // is visible. Does not allocate. Runs inline when there is one piece or one thread.
  template <class Body>
  void Run(uint32_t pieces, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    RunErased(
        pieces,
        [](void* erased, uint32_t piece, uint32_t worker) { (*static_cast<Plain*>(erased))(piece, worker); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using Piece = void (*)(void* body, uint32_t piece, uint32_t worker);
  void RunErased(uint32_t pieces, Piece piece, void* body);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace reprise
