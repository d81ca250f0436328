#include "cli/router/routed_grpc_call.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "daemon/grpc_status.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/client_callback.h"
#include "inferd/serving/serving_context.h"

namespace sluice::cli {
namespace {

namespace asio = boost::asio;

constexpr char kRequestId[] = "x-request-id";
// A client that takes no response for this long is cancelled, or it would keep its model loaded. inferd's own
// limit is shorter (ServingLimits::stall_timeout), and such a client gets inferd's reason if it reads again.
constexpr std::chrono::seconds kStallTimeout(60);

// True if inferd was lost, or ended the call because it is ending: its other errors have a reason
// (Explain()).
bool IsOfConnection(const grpc::Status& status) {
  const grpc::StatusCode code = status.error_code();
  return (code == grpc::StatusCode::UNAVAILABLE || code == grpc::StatusCode::CANCELLED) &&
         status.error_details().empty();
}

}  // namespace

// The call to inferd. gRPC's threads call its reactions, which go on in the loop; the loop keeps it alive
// until OnDone().
class RoutedGrpcCall::Upstream final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                                       public std::enable_shared_from_this<Upstream> {
 public:
  Upstream(asio::io_context& io, std::shared_ptr<RoutedGrpcCall> owner)
      : io_(io), work_(io.get_executor()), owner_(std::move(owner)), request_(owner_->request_) {}

  void Start(const std::shared_ptr<grpc::Channel>& channel) {
    self_ = shared_from_this();
    const grpc::CallbackServerContext& from = *owner_->context_;
    context_.set_deadline(from.deadline());
    if (const auto id = from.client_metadata().find(kRequestId); id != from.client_metadata().end()) {
      context_.AddMetadata(kRequestId, std::string(id->second.data(), id->second.size()));
    }
    grpc::GenericStub(channel).PrepareBidiStreamingCall(&context_, owner_->method_, {}, this);
    AddHold();  // reads are started by the loop
    StartWriteLast(&request_, {});
    Read();
    StartCall();
  }
  void Read() {
    reading_ = true;
    StartRead(&response_);
  }
  // Reads no more, so that the call can end. Idempotent.
  void Release() {
    if (!reading_ && !std::exchange(released_, true)) {
      RemoveHold();
    }
  }
  void Cancel() {
    context_.TryCancel();
    Release();  // otherwise at the end of the read
  }
  bool released() const { return released_; }

  void OnReadDone(bool ok) override {
    asio::post(io_, [this, self = shared_from_this(), ok] {
      reading_ = false;
      owner_->OnResponse(ok, std::move(response_));
    });
  }
  void OnDone(const grpc::Status& status) override {
    asio::post(io_, [self = std::move(self_), status] {
      const std::shared_ptr<RoutedGrpcCall> owner = std::move(self->owner_);
      owner->OnUpstreamEnd(status);
    });
  }

 private:
  asio::io_context& io_;
  const asio::executor_work_guard<asio::io_context::executor_type> work_;  // the loop runs until OnDone()
  std::shared_ptr<RoutedGrpcCall> owner_;
  const grpc::ByteBuffer request_;
  grpc::ClientContext context_;
  grpc::ByteBuffer response_;
  std::shared_ptr<Upstream> self_;
  bool reading_ = false;  // of the loop's thread, as the next one
  bool released_ = false;
};

RoutedGrpcCall::RoutedGrpcCall(asio::io_context& io, size_t model, std::string method,
                               grpc::ByteBuffer request, grpc::CallbackServerContext* context,
                               GrpcClient* client)
    : RoutedCall(model),
      io_(io),
      method_(std::move(method)),
      request_(std::move(request)),
      context_(context),
      client_(client),
      stall_(io) {}

RoutedGrpcCall::~RoutedGrpcCall() = default;

void RoutedGrpcCall::Begin(std::function<void()> on_left) { on_left_ = std::move(on_left); }

void RoutedGrpcCall::Forward(const ModelServers& servers, OnEnd on_end) {
  ++attempts_;
  on_end_ = std::move(on_end);
  upstream_ = std::make_shared<Upstream>(io_, shared_from_this());
  upstream_->Start(servers.grpc);
}

void RoutedGrpcCall::Fail(const absl::Status& status) {
  on_left_ = nullptr;
  FinishClient(ToGrpcStatus(inferd::Explain(status)));
}

void RoutedGrpcCall::OnWritten(bool sent) {
  asio::post(io_, [self = shared_from_this(), sent] { self->ReadOn(sent); });
}

void RoutedGrpcCall::OnCancelled() {
  asio::post(io_, [self = shared_from_this()] { self->Leave(); });
}

void RoutedGrpcCall::OnResponse(bool more, grpc::ByteBuffer response) {
  if (!more || left_) {
    upstream_->Release();
    return;
  }
  responded_ = true;
  LimitWrite();
  client_->Write(std::move(response));
}

void RoutedGrpcCall::LimitWrite() {
  stall_.expires_after(kStallTimeout);
  stall_.async_wait([weak = weak_from_this()](boost::system::error_code error) {
    if (const auto self = weak.lock(); !error && self != nullptr && self->client_ != nullptr) {
      self->context_->TryCancel();  // OnCancelled() follows
    }
  });
}

void RoutedGrpcCall::ReadOn(bool sent) {
  stall_.cancel();
  if (upstream_ == nullptr || upstream_->released()) {
    return;
  }
  if (sent && !left_) {
    upstream_->Read();
  } else {
    upstream_->Cancel();
  }
}

void RoutedGrpcCall::Leave() {
  left_ = true;
  if (upstream_ != nullptr) {
    upstream_->Cancel();
  } else if (const auto on_left = std::exchange(on_left_, nullptr); on_left != nullptr) {
    FinishClient(grpc::Status::CANCELLED);
    on_left();
  }
}

void RoutedGrpcCall::OnUpstreamEnd(const grpc::Status& status) {
  upstream_.reset();
  const OnEnd on_end = std::exchange(on_end_, nullptr);
  if (!left_ && !responded_ && IsOfConnection(status)) {
    on_end(/*lost=*/true, status.error_message());
    return;
  }
  on_left_ = nullptr;
  if (!left_ && IsOfConnection(status)) {
    FinishClient(ToGrpcStatus(inferd::Explain(absl::UnavailableError(
        absl::StrCat("the model was lost within the answer: ", status.error_message())))));
  } else {
    FinishClient(status);
  }
  on_end(/*lost=*/false, "");
}

void RoutedGrpcCall::FinishClient(const grpc::Status& status) {
  stall_.cancel();
  if (GrpcClient* client = std::exchange(client_, nullptr); client != nullptr) {
    client->Finish(status);
  }
}

}  // namespace sluice::cli
