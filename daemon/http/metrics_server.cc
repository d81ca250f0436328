#include "daemon/http/metrics_server.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/listen_address.h"
#include "common/base/status.h"
#include "daemon/http/http_message.h"

namespace sluice {
namespace {

constexpr size_t kMaxBodyBytes = 4096;
constexpr uint32_t kMaxConnections = 64;  // beyond it the longest idle one is closed
constexpr char kMetricsType[] = "text/plain; version=0.0.4; charset=utf-8";
constexpr char kTextType[] = "text/plain; charset=utf-8";

class MetricsHandler final : public HttpHandler {
 public:
  explicit MetricsHandler(std::function<std::string()> text) : text_(std::move(text)) {}

  void Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) override {
    if (request.path != "/metrics") {
      exchange->Answer({404, kTextType, {}, "only /metrics is served here\n"});
    } else if (request.method != "GET") {
      exchange->Answer({405, kTextType, {{"Allow", "GET, HEAD, OPTIONS"}}, "send GET\n"});
    } else {
      exchange->Answer({200, kMetricsType, {}, text_()});
    }
  }
  HttpResponse Refusal(const std::string&, const HttpProblem& problem) override {
    return {problem.status, kTextType, {}, absl::StrCat(problem.message, "\n")};
  }
  bool IsPublic(const std::string&) const override { return true; }
  bool IsRateLimited(const std::string&) const override { return false; }

 private:
  const std::function<std::string()> text_;
};

absl::StatusOr<ListenAddress> ParseMetricsAddress(const std::string& text) {
  absl::StatusOr<ListenAddress> address = ParseListenAddress(text);
  if (!address.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--metrics: ", address.status().message()));
  }
  if (address->kind != ListenAddress::Kind::kTcp) {
    return absl::InvalidArgumentError(
        absl::StrCat("--metrics: they are served on a TCP port, as 127.0.0.1:9400, not on ", text));
  }
  if (!address->IsLocal()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--metrics: ", text, " can be reached from other machines: only loopback is served"));
  }
  return address;
}

}  // namespace

absl::Status CheckMetricsAddress(const std::string& address) { return ParseMetricsAddress(address).status(); }

MetricsServer::MetricsServer(std::function<std::string()> text)
    : handler_(std::make_unique<MetricsHandler>(std::move(text))) {}

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Open(const std::string& address,
                                                                   std::function<std::string()> text) {
  HttpServerOptions options;
  ASSIGN_OR_RETURN(options.addresses.emplace_back(), ParseMetricsAddress(address));
  options.max_body_bytes = kMaxBodyBytes;
  options.max_connections = kMaxConnections;
  std::unique_ptr<MetricsServer> metrics(new MetricsServer(std::move(text)));
  ASSIGN_OR_RETURN(metrics->server_, HttpServer::Start(std::move(options), metrics->handler_.get()));
  return metrics;
}

}  // namespace sluice
