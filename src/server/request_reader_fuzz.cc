// The bytes of a connection, cut at a place that the first byte chooses. What must hold: no crash, no
// more held than the limits allow, and the same verdict and the same requests as in one piece.
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "server/request_reader.h"

namespace reprise {
namespace {

struct Seen {
  std::vector<std::string> requests;
  RequestReader::Progress end = RequestReader::Progress::kMore;
};

Seen ReadAll(const std::string& bytes, size_t piece) {
  ServerLimits limits;
  limits.header_bytes_max = 256;
  limits.body_bytes_max = 512;
  RequestReader reader(limits, std::make_shared<BodyBudget>(1024));
  Seen seen;
  std::string in;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    in += bytes.substr(at, piece);
    while (true) {
      seen.end = reader.Feed(in);
      if (seen.end == RequestReader::Progress::kContinue) continue;
      if (seen.end != RequestReader::Progress::kDone) break;
      const HttpRequest request = reader.Take();
      CHECK_LE(request.body.size(), limits.body_bytes_max);
      seen.requests.push_back(request.method + " " + request.path + "\n" + request.body);
    }
    if (seen.end != RequestReader::Progress::kMore) return seen;
    CHECK_LE(in.size(), limits.header_bytes_max + piece);
  }
  return seen;
}

}  // namespace
}  // namespace reprise

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace reprise;
  if (size < 2) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Seen whole = ReadAll(bytes, bytes.size());
  const Seen cut = ReadAll(bytes, 1 + data[0] % 32);
  CHECK_EQ(whole.requests.size(), cut.requests.size());
  for (size_t i = 0; i < whole.requests.size(); ++i) CHECK(whole.requests[i] == cut.requests[i]);
  return 0;
}
