// ConnectionExchange: the HttpExchange of a connection's current request.
//
// Thread safety: thread-safe, as HttpExchange.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "inferd/http/http_connection.h"
#include "inferd/http/http_core.h"
#include "inferd/http/http_message.h"

namespace sluice::inferd {

// One request's answer. Calls are posted to the connection's thread; the connection may be gone by then.
class ConnectionExchange final : public HttpExchange {
 public:
  ConnectionExchange(std::shared_ptr<HttpCore> core, std::weak_ptr<HttpConnection> connection,
                     uint64_t request)
      : core_(std::move(core)), connection_(std::move(connection)), request_(request) {}

  void SetObserver(std::shared_ptr<HttpObserver> observer) override {
    const bool posted = core_->Post([connection = connection_, request = request_, observer] {
      if (const auto to = connection.lock(); to != nullptr) {
        to->SetObserver(request, observer);
      } else {
        observer->OnEnded(/*disconnected=*/true);
      }
    });
    if (!posted) {
      observer->OnEnded(/*disconnected=*/true);
    }
  }
  void Answer(HttpResponse answer) override { Call(&HttpConnection::Answer, std::move(answer)); }
  void Begin(HttpResponse head) override { Call(&HttpConnection::Begin, std::move(head)); }
  void Write(std::string part) override { Call(&HttpConnection::Write, std::move(part)); }
  void End(bool whole) override { Call(&HttpConnection::End, whole); }

 private:
  template <typename Argument>
  void Call(void (HttpConnection::*method)(uint64_t, Argument), Argument argument) {
    core_->Post(
        [connection = connection_, request = request_, method, argument = std::move(argument)]() mutable {
          if (const auto to = connection.lock(); to != nullptr) {
            (to.get()->*method)(request, std::move(argument));
          }
        });
  }

  const std::shared_ptr<HttpCore> core_;
  const std::weak_ptr<HttpConnection> connection_;
  const uint64_t request_;
};

}  // namespace sluice::inferd
