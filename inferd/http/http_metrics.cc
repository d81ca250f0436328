#include "inferd/http/http_metrics.h"

#include "absl/strings/str_cat.h"

namespace sluice::inferd {

void HttpMetrics::Answered(const std::string& client, int status) {
  const MutexLock lock(&mutex_);
  ++answers_[{client, status}];
}

void HttpMetrics::Write(MetricText* text) const {
  text->One("inferd_http_connections", MetricType::kGauge, "Connections of HTTP clients.", connections());
  text->One("inferd_http_refused_connections_total", MetricType::kCounter,
            "Connections closed because there were too many, or their peer may not connect.",
            refused_.load());
  text->One("inferd_http_client_disconnects_total", MetricType::kCounter,
            "Answers whose client went away, or was cut, before their end.", left_.load());
  text->Family("inferd_http_responses_total", MetricType::kCounter, "Responses by client and status.");
  const MutexLock lock(&mutex_);
  for (const auto& [who, count] : answers_) {
    text->Sample({{"client", who.first}, {"code", absl::StrCat(who.second)}}, count);
  }
}

}  // namespace sluice::inferd
