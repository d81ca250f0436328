#include "daemon/http/request_reader.h"

#include <algorithm>
#include <boost/beast/http/rfc7230.hpp>
#include <limits>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace sluice {
namespace {

namespace http = boost::beast::http;

absl::string_view View(boost::beast::string_view text) { return {text.data(), text.size()}; }

constexpr size_t kMaxRequestIdBytes = 128;  // as of request_id (inferd/api/request_checks.h)

std::string HeadField(const BeastHead& head, http::field name) { return std::string(View(head[name])); }

const char* ReasonPhrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    default:
      return status < 500 ? "Error" : "Server Error";
  }
}

// Returns a path of printable characters without escapes; none if an escape is broken or hides a control
// character.
std::optional<std::string> DecodePath(absl::string_view path) {
  std::string out;
  for (size_t i = 0; i < path.size(); ++i) {
    char c = path[i];
    if (c == '%') {
      if (i + 2 >= path.size() || !absl::ascii_isxdigit(static_cast<unsigned char>(path[i + 1])) ||
          !absl::ascii_isxdigit(static_cast<unsigned char>(path[i + 2]))) {
        return std::nullopt;
      }
      c = absl::HexStringToBytes(path.substr(i + 1, 2))[0];
      if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) {
        return std::nullopt;
      }
      i += 2;
    }
    out += c;
  }
  while (out.size() > 1 && out.back() == '/') {
    out.pop_back();
  }
  return out;
}

// Returns the path of a target in absolute form ("http://host/path", as sent to proxies).
absl::string_view PathOf(absl::string_view target) {
  if (absl::StartsWithIgnoreCase(target, "http://") || absl::StartsWithIgnoreCase(target, "https://")) {
    const size_t slash = target.find('/', target.find("//") + 2);
    target = slash == absl::string_view::npos ? "/" : target.substr(slash);
  }
  return target.substr(0, target.find_first_of("?#"));
}

absl::string_view HostName(absl::string_view host) {
  if (absl::StartsWith(host, "[")) {
    return host.substr(0, host.find(']') + 1);
  }
  return host.substr(0, host.find(':'));
}

bool IsLocalName(absl::string_view host) {
  const std::string name = absl::AsciiStrToLower(HostName(host));
  return name == "localhost" || absl::EndsWith(name, ".localhost") || name == "[::1]" ||
         (absl::StartsWith(name, "127.") && name.find_first_not_of("0123456789.") == std::string::npos);
}

// Returns the host of an origin URL: "http://localhost:3000" gives "localhost:3000".
absl::string_view OriginHost(absl::string_view origin) {
  const size_t slashes = origin.find("://");
  return slashes == absl::string_view::npos ? absl::string_view() : origin.substr(slashes + 3);
}

std::string OfferedKey(const BeastHead& head) {
  const std::string authorization = HeadField(head, http::field::authorization);
  constexpr absl::string_view kBearer = "bearer ";
  if (absl::StartsWithIgnoreCase(authorization, kBearer)) {
    return std::string(absl::StripAsciiWhitespace(absl::string_view(authorization).substr(kBearer.size())));
  }
  return std::string(View(head["x-api-key"]));
}

HttpProblem Bad(const std::string& message) { return {400, "bad_request", message}; }

std::optional<HttpProblem> CheckFraming(const BeastHead& head, std::string_view raw) {
  // Refuses header lines continued by white space: servers parse them differently.
  if (raw.find("\r\n ") != std::string_view::npos || raw.find("\r\n\t") != std::string_view::npos) {
    return Bad("a field of the head goes on in a second line");
  }
  if (head.version() != 10 && head.version() != 11) {
    return HttpProblem{505, "", "only HTTP/1.0 and HTTP/1.1 are spoken here"};
  }
  if (head.count(http::field::host) > 1 || (head.version() == 11 && head.count(http::field::host) == 0)) {
    return Bad("the head must have one Host");
  }
  if (head.count(http::field::content_length) > 1 || head.count(http::field::transfer_encoding) > 1) {
    return Bad("the head has two lengths");
  }
  // The parser accepts "4, 4" as one length, which is allowed; intermediaries may treat it as none.
  if (const absl::string_view length = View(head[http::field::content_length]);
      !std::all_of(length.begin(), length.end(), absl::ascii_isdigit)) {
    return Bad("Content-Length is not one whole number");
  }
  if (head.count(http::field::transfer_encoding) > 0) {
    if (!absl::EqualsIgnoreCase(View(head[http::field::transfer_encoding]), "chunked")) {
      return HttpProblem{501, "", "the only Transfer-Encoding that is understood is chunked"};
    }
    if (head.version() == 10 || head.count(http::field::content_length) > 0) {
      return Bad("the head has a length and is chunked, or is chunked and of HTTP/1.0");
    }
  }
  if (head.count(http::field::content_encoding) > 0 &&
      !absl::EqualsIgnoreCase(View(head[http::field::content_encoding]), "identity")) {
    return HttpProblem{415, "", "compressed bodies are not understood: send it as it is"};
  }
  return std::nullopt;
}

}  // namespace

std::optional<HttpProblem> ParseHead(const BeastHead& head, std::string_view raw, const HeadPolicy& policy,
                                     ParsedHead* out) {
  if (auto problem = CheckFraming(head, raw); problem.has_value()) {
    out->keep_alive = false;
    return problem;
  }
  out->request.method = std::string(View(head.method_string()));
  out->chunks = head.version() == 11;
  http::token_list connection(head[http::field::connection]);
  out->keep_alive = head.version() == 11 ? !connection.exists("close") : connection.exists("keep-alive");
  out->expects_continue =
      head.version() == 11 && absl::EqualsIgnoreCase(View(head[http::field::expect]), "100-continue");
  out->key = OfferedKey(head);
  out->origin = HeadField(head, http::field::origin);
  const std::string id(View(head["x-request-id"]));
  if (id.size() <= kMaxRequestIdBytes && std::all_of(id.begin(), id.end(), absl::ascii_isgraph)) {
    out->request.request_id = id;
  }
  for (const std::string& allowed : policy.cors_origins) {
    out->origin_allowed =
        out->origin_allowed || (!out->origin.empty() && (allowed == "*" || allowed == out->origin));
  }
  out->preflight = out->request.method == "OPTIONS" && !out->origin.empty() &&
                   head.count(http::field::access_control_request_method) > 0;
  const absl::string_view target = View(head.target());
  const std::optional<std::string> path = DecodePath(PathOf(target));
  if (!path.has_value() || path->empty() || ((*path)[0] != '/' && *path != "*")) {
    return Bad("the target is no path");
  }
  out->request.path = *path;
  const std::string host = HeadField(head, http::field::host);
  if (policy.local_names_only && !host.empty() && !IsLocalName(host)) {
    return HttpProblem{403, "foreign_host",
                       absl::StrCat("Host is ", host.substr(0, 200),
                                    ", and without keys only names of this machine are answered")};
  }
  // A page of another site can send a form without CORS permission, but not JSON with its content type.
  const std::string type = HeadField(head, http::field::content_type);
  out->request.foreign_form = policy.local_names_only && !out->origin.empty() && !out->origin_allowed &&
                              !IsLocalName(OriginHost(out->origin)) &&
                              !absl::StartsWithIgnoreCase(type, "application/json");
  return std::nullopt;
}

std::string AnswerHead(const HttpResponse& answer, const ParsedHead& request, bool keep_alive,
                       std::optional<size_t> length) {
  std::string head = absl::StrCat("HTTP/1.1 ", answer.status, " ", ReasonPhrase(answer.status), "\r\n");
  if (answer.status != 204) {
    absl::StrAppend(&head, "Content-Type: ", answer.content_type, "\r\n");
    if (length.has_value()) {
      absl::StrAppend(&head, "Content-Length: ", *length, "\r\n");
    } else if (request.chunks) {
      absl::StrAppend(&head, "Transfer-Encoding: chunked\r\n");
    }
  }
  for (const auto& [name, value] : answer.headers) {
    absl::StrAppend(&head, name, ": ", value, "\r\n");
  }
  if (request.origin_allowed) {
    absl::StrAppend(&head, "Access-Control-Allow-Origin: ", request.origin,
                    "\r\nVary: Origin\r\nAccess-Control-Expose-Headers: x-request-id, retry-after\r\n");
  }
  if (!keep_alive) {
    absl::StrAppend(&head, "Connection: close\r\n");
  } else if (!request.chunks) {
    absl::StrAppend(&head, "Connection: keep-alive\r\n");
  }
  absl::StrAppend(&head, "\r\n");
  return head;
}

namespace {

constexpr size_t kMaxHeadBytes = 32 << 10;

// Returns the reason for which the bytes cannot become a head, so that there is no need to wait for the rest:
// another protocol (TLS on a plain port), or wrong line ends. Null if they can. Bytes before `from` were
// checked before.
const char* HeadError(const std::string& in, size_t from) {
  if (const char first = in[0]; !absl::ascii_isalpha(static_cast<unsigned char>(first))) {
    return first == 0x16 ? "this port speaks plain HTTP, and TLS came" : "it begins with no method";
  }
  for (size_t at = in.find('\n', from); at != std::string::npos; at = in.find('\n', at + 1)) {
    if (in[at - 1] != '\r') {
      return "a line ends without CR";
    }
    if (at >= 3 && in[at - 2] == '\n') {
      break;  // the head's end: the body is not examined
    }
  }
  return nullptr;
}

}  // namespace

RequestReader::Step RequestReader::Refuse(HttpProblem problem) {
  problem_ = std::move(problem);
  return Step::kRefused;
}

RequestReader::Step RequestReader::ReadHead(const HeadPolicy& policy, bool* fresh) {
  *fresh = false;
  if (!parser_.has_value()) {
    const size_t first = in_.find_first_not_of("\r\n");  // empty lines before a request are ignored
    in_.erase(0, first == std::string::npos ? in_.size() : first);
    if (in_.empty()) {
      return Step::kMore;
    }
    parser_.emplace();
    parser_->header_limit(kMaxHeadBytes);
    parser_->body_limit(std::numeric_limits<uint64_t>::max());  // AllowBody() sets the actual limit
    scanned_ = 0;
    head_ = {};
    *fresh = true;
  }
  if (const char* why = HeadError(in_, scanned_); why != nullptr) {
    return Refuse({400, "bad_request", absl::StrCat("this is no HTTP request: ", why)});
  }
  const size_t end = in_.find("\r\n\r\n", scanned_ > 3 ? scanned_ - 3 : 0);
  if (end == std::string::npos ? in_.size() > kMaxHeadBytes : end > kMaxHeadBytes) {
    return Refuse(
        {431, "", absl::StrCat("the head of the request is longer than ", kMaxHeadBytes, " bytes")});
  }
  if (end == std::string::npos) {
    scanned_ = in_.size();
    return Step::kMore;
  }
  boost::system::error_code error;
  const size_t used = parser_->put(boost::asio::buffer(in_.data(), end + 4), error);
  if (error == http::error::need_more) {
    error = {};
  }
  if (error || !parser_->is_header_done() || used != end + 4) {
    return Refuse({400, "bad_request", absl::StrCat("this is no HTTP request: ", error.message())});
  }
  if (std::optional<HttpProblem> problem =
          ParseHead(parser_->get(), std::string_view(in_).substr(0, end + 4), policy, &head_);
      problem.has_value()) {
    head_.keep_alive = false;
    return Refuse(*std::move(problem));
  }
  in_.erase(0, end + 4);
  return Step::kDone;
}

void RequestReader::AllowBody(uint64_t limit) {
  body_limit_ = limit;
  parser_->body_limit(limit);
  parser_->eager(true);
  head_done_ = true;
}

RequestReader::Step RequestReader::ReadBody() {
  boost::system::error_code error;
  while (!in_.empty() && !parser_->is_done()) {
    const size_t used = parser_->put(boost::asio::buffer(in_), error);
    in_.erase(0, used);
    if (error == http::error::need_more) {
      error = {};
      break;
    }
    if (error || used == 0) {
      break;
    }
  }
  if (error) {
    head_.keep_alive = false;
    const bool large = error == http::error::body_limit;
    return Refuse({large ? 413 : 400, "",
                   large ? absl::StrCat("the body has more than ", body_limit_, " bytes")
                         : absl::StrCat("the body is broken: ", error.message())});
  }
  return parser_->is_done() ? Step::kDone : Step::kMore;
}

std::optional<uint64_t> RequestReader::content_length() {
  const boost::optional<uint64_t> length = parser_->content_length();
  return length.has_value() ? std::optional<uint64_t>(*length) : std::nullopt;
}

bool RequestReader::is_head_alone() {
  return parser_.has_value() && parser_->is_header_done() && !parser_->chunked() &&
         parser_->content_length().value_or(0) == 0;
}

void RequestReader::End() {
  parser_.reset();
  head_done_ = false;
}

}  // namespace sluice
