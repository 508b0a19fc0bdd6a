// A few threads for the work that a client can make long: parsing its JSON and tokenising its prompt.
// The queue is bounded by what feeds it: a connection has at most one request in work.
//
// Ownership: owns its threads. Threads: Run from any thread. Errors: none.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace reprise {

class RequestThreads {
 public:
  explicit RequestThreads(uint32_t threads);
  ~RequestThreads();  // what has not begun is dropped

  void Run(std::function<void()> work);

 private:
  void Loop();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;  // guarded by mutex_
  bool stopping_ = false;                    // guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace reprise
