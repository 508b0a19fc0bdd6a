// A circuit breaker: after so many failures in a row an operation is not tried for a while; then one is, and what comes
// of it decides whether the others may follow.
//
// Ownership: a value. Threads: its owner's lock. Errors: none.
// Design:    DESIGN 8
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace reprise {

class Breaker {
 public:
  using Clock = std::chrono::steady_clock;
  enum class State : uint8_t { kClosed, kOpen, kTrying };

  Breaker(uint32_t failures_max, uint32_t open_ms, uint32_t open_ms_max)
      : failures_max_(failures_max), open_ms_first_(open_ms), open_ms_max_(open_ms_max) {}

  // Whether an operation would be let through now.
  bool WouldAllow(Clock::time_point now) const {
    return state_ == State::kClosed || (state_ == State::kOpen ? now >= open_until_ : !tried_);
  }
  // Lets one through. REQUIRES: WouldAllow.
  void Begin() {
    if (state_ == State::kClosed) return;
    state_ = State::kTrying;
    tried_ = true;
  }
  // The one that was let through to try never came to an end: another one may try.
  void Abandon() { tried_ = false; }

  // Both: whether the state changed between open and closed.
  bool Succeed() {
    const bool reopened = state_ != State::kClosed;
    state_ = State::kClosed;
    failures_ = 0;
    open_ms_ = 0;
    return reopened;
  }
  bool Fail(Clock::time_point now) {
    const bool was_closed = state_ == State::kClosed;
    if (was_closed && ++failures_ < failures_max_) return false;
    if (state_ == State::kOpen) return false;  // of before it opened
    open_ms_ = open_ms_ == 0 ? open_ms_first_ : std::min(open_ms_ * 2, open_ms_max_);
    open_until_ = now + std::chrono::milliseconds(open_ms_);
    state_ = State::kOpen;
    tried_ = false;
    return was_closed;
  }

  State state() const { return state_; }
  uint32_t open_ms() const { return open_ms_; }

 private:
  const uint32_t failures_max_, open_ms_first_, open_ms_max_;
  State state_ = State::kClosed;
  uint32_t failures_ = 0;
  uint32_t open_ms_ = 0;
  bool tried_ = false;
  Clock::time_point open_until_;
};

}  // namespace reprise
