#include "cli/http_client.h"

#include <curl/curl.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/size.h"
#include "common/base/status.h"
#include "common/base/version.h"

namespace sluice::cli {
namespace {

constexpr long kConnectSeconds = 30;
// Seconds without a byte after which a connection counts as dead; a slow one continues.
constexpr long kStillSeconds = 60;
constexpr long kMaxRedirects = 10;
constexpr long kTransferBufferBytes = 256 * 1024;

// State of one request for libcurl's callbacks.
struct Transfer {
  HttpHead head;
  const HttpClient::Sink* sink = nullptr;
  const std::atomic<bool>* cancel = nullptr;
  absl::Status error;  // returned by the sink
};

size_t OnHeader(char* data, size_t size, size_t count, void* user) {
  HttpHead& head = static_cast<Transfer*>(user)->head;
  const std::string line(data, size * count);
  if (absl::StartsWith(line, "HTTP/")) {
    head = {};  // discards the head of a redirect
    const size_t space = line.find(' ');
    if (space == std::string::npos || !absl::SimpleAtoi(line.substr(space + 1, 3), &head.status)) {
      head.status = 0;
    }
  }
  const size_t colon = line.find(':');
  if (colon != std::string::npos) {
    head.headers[absl::AsciiStrToLower(line.substr(0, colon))] =
        std::string(absl::StripAsciiWhitespace(absl::string_view(line).substr(colon + 1)));
  }
  return line.size();
}

// libcurl ends the request unless the callback returns the number of bytes.
size_t OnBody(char* data, size_t size, size_t count, void* user) {
  Transfer& transfer = *static_cast<Transfer*>(user);
  const size_t bytes = size * count;
  if (transfer.head.status != 200 && transfer.head.status != 206) return bytes;
  transfer.error = (*transfer.sink)(transfer.head, {reinterpret_cast<const std::byte*>(data), bytes});
  return transfer.error.ok() ? bytes : 0;
}

int OnProgress(void* user, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  const std::atomic<bool>* cancel = static_cast<Transfer*>(user)->cancel;
  return cancel != nullptr && cancel->load() ? 1 : 0;
}

// Returns true if another attempt may succeed.
bool IsTransient(CURLcode code) {
  switch (code) {
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_PARTIAL_FILE:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
      return true;
    default:
      return false;
  }
}

// libcurl requires this once, before its first handle.
void InitialiseCurl() {
  static const CURLcode once = curl_global_init(CURL_GLOBAL_DEFAULT);
  static_cast<void>(once);
}

}  // namespace

struct HttpClient::Impl {
  CURL* curl = nullptr;
  const std::atomic<bool>* cancel = nullptr;
};

std::string HttpHead::Header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

HttpClient::HttpClient(const std::atomic<bool>* cancel) : impl_(std::make_unique<Impl>()) {
  InitialiseCurl();
  impl_->curl = curl_easy_init();
  impl_->cancel = cancel;
}

HttpClient::~HttpClient() { curl_easy_cleanup(impl_->curl); }

absl::StatusOr<HttpHead> HttpClient::Get(const HttpRequest& request, const Sink& sink) {
  CURL* curl = impl_->curl;
  if (curl == nullptr) return absl::InternalError("libcurl gives no handle");
  curl_easy_reset(curl);  // keeps its connections
  Transfer transfer;
  transfer.cancel = impl_->cancel;
  transfer.sink = &sink;
  char detail[CURL_ERROR_SIZE] = "";
  curl_slist* headers = nullptr;
  if (!request.token.empty()) {
    headers = curl_slist_append(headers, absl::StrCat("Authorization: Bearer ", request.token).c_str());
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
  }
  const std::string range = absl::StrCat(request.from, "-");
  if (request.from > 0) curl_easy_setopt(curl, CURLOPT_RANGE, range.c_str());
  const std::string agent = absl::StrCat("sluice/", Version());
  curl_easy_setopt(curl, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(curl, CURLOPT_USERAGENT, agent.c_str());
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, detail);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L);
  curl_easy_setopt(curl, CURLOPT_MAXREDIRS, kMaxRedirects);
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  // A request that starts encrypted must not be redirected to plain text.
  curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR,
                   absl::StartsWith(request.url, "https:") ? "https" : "http,https");
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, kStillSeconds);
  curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, kTransferBufferBytes);
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, OnHeader);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, OnBody);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, OnProgress);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &transfer);
  const CURLcode code = curl_easy_perform(curl);
  curl_slist_free_all(headers);
  if (!transfer.error.ok()) return transfer.error;
  if (code == CURLE_ABORTED_BY_CALLBACK) return absl::CancelledError("interrupted");
  if (code != CURLE_OK) {
    const std::string message =
        absl::StrCat(request.url, ": ", detail[0] != '\0' ? detail : curl_easy_strerror(code));
    return IsTransient(code) ? absl::UnavailableError(message) : absl::FailedPreconditionError(message);
  }
  curl_off_t seconds = 0;
  curl_easy_getinfo(curl, CURLINFO_RETRY_AFTER, &seconds);
  if (transfer.head.headers.count("retry-after") > 0) transfer.head.retry_after = absl::Seconds(seconds);
  return transfer.head;
}

std::string UrlEscape(const std::string& text) {
  InitialiseCurl();
  char* escaped = curl_easy_escape(nullptr, text.data(), static_cast<int>(text.size()));
  const std::string result = escaped == nullptr ? "" : escaped;
  curl_free(escaped);
  return result;
}

namespace {

constexpr int kAttempts = 6;
constexpr absl::Duration kFirstWait = absl::Milliseconds(500);
// Maximum wait that a hub may request; a longer one is an error.
constexpr absl::Duration kLongestWait = absl::Minutes(10);
constexpr absl::Duration kLook = absl::Milliseconds(50);

}  // namespace

absl::Status StatusOfAnswer(const HttpHead& head, const std::string& subject, bool with_token) {
  const int status = head.status;
  if (status == 200 || status == 206) return absl::OkStatus();
  const std::string said = head.Header("x-error-message");
  const std::string text =
      absl::StrCat(subject, ": the hub answers ", status, said.empty() ? "" : ": ", said.substr(0, 200));
  if (status == 401 || status == 403) {
    const std::string help = absl::StrCat(
        text, with_token ? "; the token of HF_TOKEN may not read it: a gated repository's conditions "
                           "are accepted on its page"
                         : "; it is not there, or wants a token: set HF_TOKEN");
    return status == 401 ? absl::UnauthenticatedError(help) : absl::PermissionDeniedError(help);
  }
  if (status == 404 || status == 410) return absl::NotFoundError(text);
  if (status == 416) return absl::OutOfRangeError(text);
  if (status == 408 || status == 429 || status >= 500) return absl::UnavailableError(text);
  return absl::FailedPreconditionError(text);
}

absl::Status Retries::Wait(const absl::Status& failure, std::optional<absl::Duration> asked, bool progress) {
  if (!absl::IsUnavailable(failure)) return failure;
  failures_ = progress ? 1 : failures_ + 1;
  if (failures_ >= kAttempts) return Annotate(failure, absl::StrCat("after ", kAttempts, " attempts"));
  const absl::Duration wait = asked.value_or(kFirstWait * (1 << (failures_ - 1)));
  if (wait > kLongestWait) {
    return Annotate(failure, absl::StrCat("the hub asks to come again in ", FormatTimeSpan(wait)));
  }
  note_(absl::StrCat(failure.message(), "; again in ", FormatTimeSpan(wait)));
  for (const absl::Time end = SteadyNow() + wait; SteadyNow() < end;) {
    if (cancel_ != nullptr && cancel_->load()) return absl::CancelledError("interrupted");
    absl::SleepFor(std::min(kLook, end - SteadyNow()));
  }
  return absl::OkStatus();
}

}  // namespace sluice::cli
