// Where llama.cpp's log goes: to ours, at debug level; and, while a call may fail, to whoever wants to
// say why, since its loaders return no reason.
//
// Ownership: none. Threads: any. Errors: none.
#pragma once

#include <string>

namespace reprise {

// Takes llama.cpp's log from stderr; the first call counts.
void RouteLibraryLog();

// Keeps the first error that llama.cpp logs on this thread while it lives.
class LibraryErrors {
 public:
  LibraryErrors();
  ~LibraryErrors();
  LibraryErrors(const LibraryErrors&) = delete;
  LibraryErrors& operator=(const LibraryErrors&) = delete;

  // Without llama.cpp's function names; "no reason given" if there was none.
  std::string first() const;

 private:
  LibraryErrors* const outer_;
  std::string first_;
  friend void KeepLibraryError(std::string text);
};

}  // namespace reprise
