// HttpConnection: one client's connection: reads a request, hands it to the handler, writes the answer, and
// repeats.
//
// A read is always under way, so a disconnect is noticed at once, also while the client waits for an answer.
// Bytes received meanwhile (the next request) are kept, up to a limit. A stalled reader is cut.
//
// Thread safety: all of it belongs to the io_context's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>  // for Boost 1.74
#include <vector>

#include "absl/time/time.h"
#include "daemon/http/http_core.h"
#include "daemon/http/http_message.h"
#include "daemon/http/http_transport.h"
#include "daemon/http/request_reader.h"

namespace sluice {

// Properties of a connection that its listener determines.
struct HttpOrigin {
  std::string client;     // "tcp", or the class of a unix socket's peer
  bool needs_key = true;  // if keys are configured; a unix socket's peers are known without
  HeadPolicy policy;
};

class HttpConnection final : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(std::shared_ptr<HttpCore> core, std::shared_ptr<HttpTransport> transport,
                 std::shared_ptr<const HttpOrigin> origin);

  void Start();
  // Enforces the timeouts.
  void Tick(absl::Time now);
  // Closes at once and aborts the answer under way.
  void Drop();
  // Closes when the current answer is finished, or at once if there is none.
  void Drain();
  // Start of waiting for a request; none while a request is active.
  std::optional<absl::Time> idle_since() const;

  // Sets the observer of the request of that number, for exchanges; no effect once the request is over.
  void SetObserver(uint64_t request, std::shared_ptr<HttpObserver> observer);
  // Calls OnReady() of the request's observer.
  void Ready(uint64_t request);
  void Answer(uint64_t request, HttpResponse answer);
  void Begin(uint64_t request, HttpResponse head);
  void Write(uint64_t request, std::string part);
  void End(uint64_t request, bool whole);

 private:
  enum class State : uint8_t {
    kHandshake,  // TLS handshake
    kReading,    // reads a request, or waits for one
    kAnswering,
    kLingering,  // everything was sent; further input is dropped, so that the client can read the answer
    kClosed,
  };

  void StartRead();
  void OnRead(boost::system::error_code error, size_t size);
  void Advance();
  void AdmitHead();
  std::optional<HttpProblem> CheckKey();
  void Dispatch();
  void Refuse(const HttpProblem& problem);
  void AnswerOptions();
  void Send(std::string bytes);
  void StartWrite();
  void OnWrite(boost::system::error_code error, size_t size);
  void AnswerIsOver();
  void ForgetRequest();
  void Linger();
  bool IsCurrent(uint64_t request) const {
    return state_ == State::kAnswering && request == number_ && !ending_;
  }

  const std::shared_ptr<HttpCore> core_;
  const std::shared_ptr<HttpTransport> transport_;
  const std::shared_ptr<const HttpOrigin> origin_;

  State state_ = State::kHandshake;
  absl::Time since_;  // start of the state, or of the current request's first byte
  RequestReader reader_;
  std::vector<char> read_buffer_;
  bool reading_ = false;

  std::shared_ptr<HttpKeyUse> use_;  // counted while the request is live
  size_t reserved_bytes_ = 0;        // of core_->bodies_bytes

  uint64_t number_ = 0;  // sequence number of the request
  std::shared_ptr<HttpObserver> observer_;
  bool begun_ = false;       // a stream's head was sent
  bool ending_ = false;      // the answer's last byte is in out_ or sent
  bool keep_alive_ = false;  // keep the connection after this answer

  std::string out_;      // to be written next
  std::string writing_;  // being written
  size_t written_ = 0;   // bytes of writing_ written so far
  absl::Time progress_;  // last time the socket accepted bytes
};

}  // namespace sluice
