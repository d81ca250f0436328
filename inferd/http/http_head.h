// ParseHead: parses and validates a request's head. Refuses everything that parsers interpret differently
// (request smuggling), and everything that a browser may be tricked into sending.
//
// Thread safety: pure functions, safe to call from any thread.
#pragma once

#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>  // for Boost 1.74
#include <vector>

#include "inferd/http/http_message.h"

namespace sluice::inferd {

using BeastHead = boost::beast::http::request_header<boost::beast::http::fields>;

struct HeadPolicy {
  // Accepts only names of this machine as Host (DNS rebinding): on a loopback port without keys, a web page
  // whose name resolves to this machine must not get access.
  bool local_names_only = false;
  std::vector<std::string> cors_origins;  // origins allowed for browsers; "*": all
};

struct ParsedHead {
  HttpRequest request;  // without body and client
  std::string key;      // credential of Authorization or x-api-key
  std::string origin;   // empty: none
  bool origin_allowed = false;
  bool preflight = false;  // OPTIONS request of CORS
  bool keep_alive = true;
  bool chunks = true;  // the client supports chunked bodies (HTTP/1.1)
  bool expects_continue = false;
};

// `raw`: the head's bytes, including the empty line. Returns the problem, if any; then the connection must
// not be used for further requests.
std::optional<HttpProblem> ParseHead(const BeastHead& head, std::string_view raw, const HeadPolicy& policy,
                                     ParsedHead* out);

// Returns the head of an answer as sent. `length`: of a known body; otherwise chunked or until the connection
// closes.
std::string AnswerHead(const HttpResponse& answer, const ParsedHead& request, bool keep_alive,
                       std::optional<size_t> length);

}  // namespace sluice::inferd
