#include "inferd/serving/self_test.h"

#include <memory>
#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/status.h"

namespace sluice::inferd {
namespace {

// The sink is shared with the engine, which may end the request after the test's timeout.
class TestSink final : public RequestSink {
 public:
  void OnStarted(const Usage&, double) override {}
  void OnTokens(absl::Span<const TokenOut>, std::string_view) override {}
  void OnFinished(const FinishInfo& info) override {
    if (info.usage.completion_tokens != 1) {
      status_ =
          absl::InternalError(absl::StrCat("made ", info.usage.completion_tokens, " tokens instead of 1"));
    }
    done_.Notify();
  }
  void OnError(const absl::Status& status) override {
    status_ = status;
    done_.Notify();
  }
  bool Wait(absl::Duration limit) { return done_.WaitForNotificationWithTimeout(limit); }
  const absl::Status& status() const { return status_; }  // REQUIRES: Wait() was true

 private:
  absl::Status status_;  // written before, read after done_
  absl::Notification done_;
};

}  // namespace

absl::Status SelfTest(EngineApi* engine, int32_t token, absl::Duration limit) {
  GenerateSpec spec;
  spec.request_id = "self-test";
  spec.client = "self-test";
  spec.prompt = {token};
  spec.stopping.max_tokens = 1;
  spec.stopping.ignore_eos = true;
  spec.deadline = absl::Now() + limit;
  auto sink = std::make_shared<TestSink>();
  RETURN_IF_ERROR(Annotate(engine->Generate(std::move(spec), sink), "self-test"));
  // The engine itself enforces the deadline; the margin is for an engine that does not.
  if (!sink->Wait(limit + absl::Seconds(5))) {
    engine->Cancel("self-test").IgnoreError();
    return absl::DeadlineExceededError("self-test: the engine does not answer");
  }
  return Annotate(sink->status(), "self-test");
}

}  // namespace sluice::inferd
