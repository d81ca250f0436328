// OpenAiEndpoint: server of the OpenAI, Anthropic and llama.cpp compatible HTTP APIs: routes each path to its
// handler.
//
// Thread safety: thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/http/http_message.h"
#include "inferd/http/answer_format.h"
#include "inferd/http/chat_request.h"
#include "inferd/http/chat_writer.h"
#include "inferd/http/request_fields.h"
#include "inferd/serving/serving_context.h"

namespace sluice::inferd {

class OpenAiEndpoint final : public HttpHandler {
 public:
  // `context` is borrowed; `metrics` returns the text of /metrics.
  OpenAiEndpoint(const ServingContext& context, std::function<std::string()> metrics);

  void Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) override;
  HttpResponse Refusal(const std::string& path, const HttpProblem& problem) override;
  bool IsPublic(const std::string& path) const override {
    return path == "/health" || path == "/v1/health" || path == "/";
  }
  bool IsRateLimited(const std::string& path) const override { return path != "/metrics"; }

  // For a server of several models, which passes requests on. Returns the answer to a request that no model
  // answers: no such path, another method, an API that is not served; none for others.
  static std::optional<HttpResponse> AnswerUnrouted(const HttpRequest& request);
  // Fields of a request that decide where it goes.
  struct RoutedFields {
    std::string model;  // empty: none is named
    bool stream = false;
  };
  // INVALID_ARGUMENT: not JSON, or a field of another type.
  static absl::StatusOr<RoutedFields> ReadRoutedFields(const std::string& body);

 private:
  // A request being handled.
  struct Asked {
    HttpRequest request;
    std::shared_ptr<HttpExchange> exchange;
    CallFacts facts;
    const ChatApi* api = nullptr;  // of the route
  };
  using Method = absl::Status (OpenAiEndpoint::*)(const Asked& asked);
  struct Route {
    const char* method;
    const char* path;
    Method handle;
    bool waits = false;            // its answer needs a place in the engine's queue
    const ChatApi* api = nullptr;  // of a chat
  };
  static const Route* Find(const HttpRequest& request, std::string* allowed);

  absl::Status Page(const Asked& asked);
  absl::Status Models(const Asked& asked);
  absl::Status Health(const Asked& asked);
  absl::Status Metrics(const Asked& asked);
  // Serves a chat of any API.
  absl::Status Chat(const Asked& asked);
  absl::Status Completions(const Asked& asked);
  absl::Status CountTokens(const Asked& asked);
  absl::Status Tokenize(const Asked& asked);
  absl::Status Detokenize(const Asked& asked);
  absl::Status ApplyTemplate(const Asked& asked);
  absl::Status Unserved(const Asked& asked);

  absl::Status Model(const Asked& asked, const std::string& id);
  void Reply(const Asked& asked, const Json& json) const;
  AnswerFacts Facts(const std::string& id) const;
  Json ModelJson() const;

  const ServingContext& context_;
  const std::function<std::string()> metrics_;
  const int64_t created_;  // seconds since 1970: start of serving the model
};

}  // namespace sluice::inferd
