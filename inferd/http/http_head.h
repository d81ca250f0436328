// What a request's head says and whether it is sound: everything that makes two parsers disagree on where a
// request ends is refused, and so is what a browser may be tricked into sending.
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

namespace sluice {

using BeastHead = boost::beast::http::request_header<boost::beast::http::fields>;

struct HeadPolicy {
  // Only names of this machine are taken as Host: on a loopback port without keys, a page whose name is made
  // to point here must not be let in.
  bool local_names_only = false;
  std::vector<std::string> cors_origins;  // that may ask from a browser; "*": all
};

struct ParsedHead {
  HttpRequest request;  // all but the body and the client
  std::string key;      // what Authorization or x-api-key offers
  std::string origin;   // empty: none
  bool origin_allowed = false;
  bool preflight = false;  // OPTIONS that asks for permission
  bool keep_alive = true;
  bool chunks = true;  // the client understands a chunked body (HTTP/1.1)
  bool expects_continue = false;
};

// `raw`: the head's bytes, up to and with the empty line. The problem with it otherwise; after one the
// connection must not be used for further requests.
std::optional<HttpProblem> ParseHead(const BeastHead& head, std::string_view raw, const HeadPolicy& policy,
                                     ParsedHead* out);

// The head of an answer, as it goes out. `length`: of a body that is known, else chunked or until the end.
std::string AnswerHead(const HttpAnswer& answer, const ParsedHead& request, bool keep_alive,
                       std::optional<size_t> length);

}  // namespace sluice
