#include "server/access.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace reprise {
namespace {

constexpr std::string_view kBearer = "bearer ";
constexpr size_t kTenantDigits = 32;  // 128 bits: no two keys of a file share them

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

// "http://localhost:3000" -> "localhost"; "" for other schemes.
std::string_view HostOf(std::string_view origin) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!origin.starts_with(scheme)) continue;
    std::string_view host = origin.substr(scheme.size());
    const size_t bracket = host.find(']');  // an IPv6 address has colons of its own
    return host.substr(0, host.find(':', bracket == std::string_view::npos ? 0 : bracket));
  }
  return "";
}

// Pages of an address cannot be another's: only names can be made to point here by whoever owns them.
bool IsAddress(std::string_view host) {
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  boost::system::error_code error;
  boost::asio::ip::make_address(std::string(host), error);
  return !error;
}

bool IsThisMachine(std::string_view host) { return host == "localhost" || host == "127.0.0.1" || host == "[::1]"; }

// REQUIRES: `authorization` begins with kBearer, in any case.
Digest KeyDigest(std::string_view authorization) {
  const absl::string_view key = absl::StripAsciiWhitespace(View(authorization.substr(kBearer.size())));
  return Sha256::Of(std::string_view(key.data(), key.size()));
}

RequestError Unauthorized(int status, std::string message) {
  RequestError error;
  error.http_status = status;
  error.code = "unauthorized";
  error.message = std::move(message);
  return error;
}

}  // namespace

AccessPolicy::AccessPolicy(std::span<const std::string> api_keys, std::vector<std::string> cors_origins)
    : origins_(std::move(cors_origins)),
      every_origin_(std::find(origins_.begin(), origins_.end(), "*") != origins_.end()) {
  for (const std::string& key : api_keys) keys_.push_back(Sha256::Of(key));
}

std::string AccessPolicy::TenantOf(const HttpRequest& request) const {
  if (keys_.empty()) return "default";
  return absl::StrCat("key-", KeyDigest(request.authorization).Hex().substr(0, kTenantDigits));
}

// Every key is compared, whichever fits, and every comparison takes the same time.
bool AccessPolicy::KeyFits(std::string_view authorization) const {
  if (!absl::StartsWithIgnoreCase(View(authorization), View(kBearer))) return false;
  const Digest digest = KeyDigest(authorization);
  bool fits = false;
  for (const Digest& known : keys_) {
    fits |= CRYPTO_memcmp(known.bytes.data(), digest.bytes.data(), digest.bytes.size()) == 0;
  }
  return fits;
}

bool AccessPolicy::OriginFits(std::string_view origin) const {
  return every_origin_ || IsThisMachine(HostOf(origin)) ||
         std::find(origins_.begin(), origins_.end(), origin) != origins_.end();
}

MaybeError AccessPolicy::Check(const HttpRequest& request) const {
  const bool own_page = IsAddress(HostOf(request.origin)) &&
                        (request.origin == "http://" + request.host || request.origin == "https://" + request.host);
  if (!request.origin.empty() && !own_page && !OriginFits(request.origin)) {
    return Unauthorized(403, absl::StrCat("pages of ", request.origin.substr(0, 128),
                                          " may not use this server; to let them, start it with --cors ",
                                          request.origin.substr(0, 128)));
  }
  if (keys_.empty() || KeyFits(request.authorization)) return std::nullopt;
  return Unauthorized(401, request.authorization.empty()
                               ? "this server needs an API key: send the header `Authorization: Bearer KEY`"
                               : "the API key is not one of this server's");
}

std::string AccessPolicy::CorsHeaders(std::string_view origin) const {
  if (origin.empty() || !OriginFits(origin)) return "";
  return absl::StrCat("Access-Control-Allow-Origin: ", std::string(origin),
                      "\r\nAccess-Control-Expose-Headers: Retry-After\r\nVary: Origin\r\n");
}

HttpResponse AccessPolicy::Preflight(const HttpRequest& request, std::string_view methods) const {
  HttpResponse response;
  response.status = 204;
  response.headers.emplace_back("Allow", std::string(methods));
  if (request.origin.empty() || !OriginFits(request.origin)) return response;
  response.headers.emplace_back("Access-Control-Allow-Methods", std::string(methods));
  response.headers.emplace_back("Access-Control-Allow-Headers",
                                request.cors_headers.empty() ? "Authorization, Content-Type" : request.cors_headers);
  response.headers.emplace_back("Access-Control-Max-Age", "600");
  // A page of a public address asks for this before it may reach a private one.
  response.headers.emplace_back("Access-Control-Allow-Private-Network", "true");
  return response;
}

}  // namespace reprise
