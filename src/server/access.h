// Who may ask: API keys, and the web pages whose scripts may.
//
// A browser sends the page's origin with every request that a script makes to another place. Without a
// look at it any page that is open in a browser on this machine could use a server on 127.0.0.1, so
// by default only pages of this machine may.
//
// Ownership: values. Threads: any.
// Errors:    401 or 403 `unauthorized`, saying what to do.
// Design:    docs/http.md
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "server/errors.h"
#include "server/http_server.h"

namespace reprise {

class AccessPolicy {
 public:
  // `api_keys` empty: none is needed. `cors_origins`: pages that may ask besides those of this machine, as
  // "https://chat.example.org"; "*" is every page.
  AccessPolicy(std::span<const std::string> api_keys, std::vector<std::string> cors_origins);

  MaybeError Check(const HttpRequest& request) const;

  // Whose state a request may use: each key's own, "key-" and the first half of its SHA-256 in hex; without keys one
  // for all. REQUIRES: Check let the request in.
  std::string TenantOf(const HttpRequest& request) const;

  // The header lines that let a page of `origin` read a reply; "" for others and without an origin.
  std::string CorsHeaders(std::string_view origin) const;
  // The answer to OPTIONS, which a browser asks before a request that is not plain.
  HttpResponse Preflight(const HttpRequest& request, std::string_view methods) const;

 private:
  bool KeyFits(std::string_view authorization) const;
  bool OriginFits(std::string_view origin) const;

  std::vector<Digest> keys_;  // SHA-256: of one length, so a comparison takes one time
  const std::vector<std::string> origins_;
  bool every_origin_ = false;
};

}  // namespace reprise
