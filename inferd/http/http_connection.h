// HttpConnection: one client's connection: reads a request, has it answered, writes the answer, and again.
//
// A read is always under way, so a client that leaves is noticed at once, also while it waits for an answer.
// What it sends meanwhile (the next request) is kept, up to a limit. A reader that takes nothing is cut.
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
#include "inferd/http/http_core.h"
#include "inferd/http/http_head.h"
#include "inferd/http/http_message.h"
#include "inferd/http/request_reader.h"
#include "inferd/http/transport.h"

namespace sluice {

// What a connection is by the listener that it came through.
struct HttpOrigin {
  std::string client;     // "tcp", or the class of a unix socket's peer
  bool needs_key = true;  // where there are keys; a unix socket's peers are known without
  HeadPolicy policy;
};

class HttpConnection final : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(std::shared_ptr<HttpCore> core, std::shared_ptr<Transport> transport,
                 std::shared_ptr<const HttpOrigin> origin);

  void Start();
  // Ends what takes too long.
  void Tick(absl::Time now);
  // Closes at once; the answer under way is over.
  void Drop();
  // The server ends: closes if nothing is being answered, else after the answer.
  void Drain();
  // Since when it waits for a request; none if it does not.
  std::optional<absl::Time> idle_since() const;

  // By exchanges, for the request of that number; without effect once it is over.
  void Watch(uint64_t request, std::shared_ptr<HttpWatcher> watcher);
  void Answer(uint64_t request, HttpAnswer answer);
  void Begin(uint64_t request, HttpAnswer head);
  void Write(uint64_t request, std::string part);
  void End(uint64_t request, bool whole);

 private:
  enum class State : uint8_t {
    kHandshake,  // of TLS
    kReading,    // a request, or waiting for one
    kAnswering,
    kLingering,  // sent all; what still comes is dropped, so that the client reads the answer
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
  const std::shared_ptr<Transport> transport_;
  const std::shared_ptr<const HttpOrigin> origin_;

  State state_ = State::kHandshake;
  absl::Time since_;  // of the state, or the current request's first byte
  RequestReader reader_;
  std::vector<char> read_buffer_;
  bool reading_ = false;

  std::shared_ptr<HttpKeyUse> use_;  // counted in while the request lives
  size_t reserved_bytes_ = 0;        // of core_->bodies_bytes

  uint64_t number_ = 0;  // of the request
  std::shared_ptr<HttpWatcher> watcher_;
  bool begun_ = false;       // a stream's head was sent
  bool ending_ = false;      // the answer's last byte is in out_ or sent
  bool keep_alive_ = false;  // after this answer

  std::string out_;      // to be written next
  std::string writing_;  // being written
  size_t written_ = 0;   // of writing_
  absl::Time progress_;  // when the socket last took something
};

}  // namespace sluice
