#include "daemon/grpc_status.h"

#include <optional>
#include <string>

#include "absl/strings/cord.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace sluice {
namespace {

// Maximum length of a message. gRPC puts the details, which repeat it, into a header as base64, and clients
// limit all headers of a response to 8 KiB.
constexpr size_t kMaxMessageBytes = 2048;

// At most `limit` bytes of `text`, never cut within a UTF-8 character.
std::string Shorten(std::string text, size_t limit) {
  if (text.size() <= limit) {
    return text;
  }
  size_t end = limit;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0u) == 0x80u) {
    --end;
  }
  text.resize(end);
  return text + "...";
}

std::string PackDetails(const absl::Status& status, int code, const std::string& message) {
  google::rpc::Status packed;
  packed.set_code(code);
  packed.set_message(message);
  if (const std::string reason = ReasonOf(status); !reason.empty()) {
    google::rpc::ErrorInfo info;
    info.set_reason(reason);
    info.set_domain(kErrorDomain);
    packed.add_details()->PackFrom(info);
  }
  if (const std::string field = FieldOf(status); !field.empty()) {
    google::rpc::BadRequest bad;
    bad.add_field_violations()->set_field(field);
    bad.mutable_field_violations(0)->set_description(message);
    packed.add_details()->PackFrom(bad);
  }
  if (const std::optional<absl::Duration> delay = RetryDelayOf(status); delay.has_value()) {
    google::rpc::RetryInfo retry;
    const int64_t milliseconds = absl::ToInt64Milliseconds(*delay);
    retry.mutable_retry_delay()->set_seconds(milliseconds / 1000);
    retry.mutable_retry_delay()->set_nanos(static_cast<int>(milliseconds % 1000) * 1000000);
    packed.add_details()->PackFrom(retry);
  }
  return packed.details().empty() ? std::string() : packed.SerializeAsString();
}

void UnpackDetail(const google::protobuf::Any& detail, absl::Status* status) {
  google::rpc::ErrorInfo info;
  google::rpc::BadRequest bad;
  google::rpc::RetryInfo retry;
  if (detail.Is<google::rpc::ErrorInfo>()) {
    // Reasons of other domains come from a proxy or gRPC itself and mean nothing here.
    if (detail.UnpackTo(&info) && info.domain() == kErrorDomain && !info.reason().empty()) {
      status->SetPayload(kReasonPayload, absl::Cord(info.reason()));
    }
  } else if (detail.Is<google::rpc::BadRequest>()) {
    if (detail.UnpackTo(&bad) && bad.field_violations_size() > 0) {
      status->SetPayload(kFieldPayload, absl::Cord(bad.field_violations(0).field()));
    }
  } else if (detail.Is<google::rpc::RetryInfo>()) {
    if (detail.UnpackTo(&retry)) {
      *status = WithRetryDelay(*status, absl::Seconds(retry.retry_delay().seconds()) +
                                            absl::Nanoseconds(retry.retry_delay().nanos()));
    }
  }
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) {
    return grpc::Status::OK;
  }
  // absl's codes have gRPC's numbers. UNKNOWN carries no information, so it is reported as INTERNAL, a bug.
  auto code = static_cast<grpc::StatusCode>(status.code());
  if (code < grpc::StatusCode::CANCELLED || code > grpc::StatusCode::UNAUTHENTICATED ||
      code == grpc::StatusCode::UNKNOWN) {
    code = grpc::StatusCode::INTERNAL;
  }
  const std::string message =
      Shorten(std::string(status.message().data(), status.message().size()), kMaxMessageBytes);
  return grpc::Status(code, message, PackDetails(status, code, message));
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) {
    return absl::OkStatus();
  }
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  google::rpc::Status packed;
  if (!status.error_details().empty() && packed.ParseFromString(status.error_details())) {
    for (const google::protobuf::Any& detail : packed.details()) {
      UnpackDetail(detail, &result);
    }
  }
  return result;
}

}  // namespace sluice
