#include "cli/hub/retry.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/size.h"
#include "common/status.h"

namespace sluice::cli {
namespace {

constexpr int kAttempts = 6;
constexpr absl::Duration kFirstWait = absl::Milliseconds(500);
// A hub that asks for more is asked again by people.
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
  for (const absl::Time end = absl::Now() + wait; absl::Now() < end;) {
    if (cancel_ != nullptr && cancel_->load()) return absl::CancelledError("interrupted");
    absl::SleepFor(std::min(kLook, end - absl::Now()));
  }
  return absl::OkStatus();
}

}  // namespace sluice::cli
