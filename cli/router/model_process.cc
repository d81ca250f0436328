#include "cli/router/model_process.h"

#include <unistd.h>

#include <chrono>
#include <csignal>

#include "absl/strings/str_cat.h"
#include "cli/runtime_paths.h"
#include "common/base/clock.h"
#include "common/base/size.h"

namespace sluice::cli {
namespace {

constexpr std::chrono::milliseconds kAskAgain(10);
// inferd's own --drain-timeout and a margin.
constexpr absl::Duration kUnloadPatience = absl::Seconds(15);
constexpr int kLogLines = 10;

}  // namespace

WatchedDaemon::WatchedDaemon(boost::asio::io_context& io, DaemonCommand command, int lifeline, OnExit on_exit)
    : process_(std::move(command)),
      lifeline_(lifeline),
      on_exit_(std::move(on_exit)),
      exit_(io),
      patience_(io) {}

absl::Status WatchedDaemon::Start() {
  if (absl::Status started = process_.Start(lifeline_); !started.ok()) {
    return started;
  }
  boost::system::error_code error;
  exit_.assign(dup(process_.exit_fd()), error);
  if (error) {
    process_.Stop(absl::ZeroDuration());
    return absl::InternalError(absl::StrCat("cannot watch ", process_.name(), ": ", error.message()));
  }
  Watch();
  return absl::OkStatus();
}

void WatchedDaemon::Watch() {
  exit_.async_wait(boost::asio::posix::stream_descriptor::wait_read, [this](boost::system::error_code error) {
    if (error) {
      return;
    }
    boost::system::error_code ignored;
    exit_.close(ignored);
    patience_.cancel();
    on_exit_(process_.Reap());
  });
}

void WatchedDaemon::Stop(absl::Duration patience) {
  process_.Signal(SIGTERM);
  patience_.expires_after(absl::ToChronoMilliseconds(patience));
  patience_.async_wait([this](boost::system::error_code error) {
    if (!error) {
      process_.Signal(SIGKILL);
    }
  });
}

ModelProcess::ModelProcess(boost::asio::io_context& io, DaemonCommand command, int lifeline,
                           std::string http_socket, absl::Duration patience, Events events)
    : io_(io),
      http_socket_(std::move(http_socket)),
      log_path_(command.log_path),
      patience_(patience),
      events_(std::move(events)),
      daemon_(io, std::move(command), lifeline, [this](const DaemonProcess::Exit& exit) { OnExit(exit); }),
      again_(io) {}

void ModelProcess::Load() {
  stopping_ = false;
  overdue_.clear();
  if (absl::Status started = daemon_.Start(); !started.ok()) {
    boost::asio::post(io_, [this, started] { events_.on_gone(started); });
    return;
  }
  Probe();
}

void ModelProcess::Probe() {
  deadline_ = SteadyNow() + patience_;
  Ask();
}

void ModelProcess::Ask() {
  if (asking_ != nullptr || !daemon_.running() || stopping_) {
    return;
  }
  if (SteadyNow() > deadline_) {
    overdue_ = absl::StrCat("it does not serve after ", FormatTimeSpan(patience_));
    daemon_.Stop(kUnloadPatience);
    return;
  }
  const auto status = std::make_shared<int>(0);
  UpstreamCall::Events events;
  events.on_head = [status](const HttpResponse& head, std::optional<uint64_t>) { *status = head.status; };
  events.on_body = [](const std::string&) { return true; };
  events.on_end = [this, status](bool whole, const std::string&) {
    asking_.reset();
    if (!daemon_.running() || stopping_) {
      return;
    }
    if (whole && *status == 200) {
      events_.on_loaded();
    } else {
      AskLater();
    }
  };
  HttpRequest request;
  request.method = "GET";
  request.path = "/health";
  asking_ = UpstreamCall::Start(io_, http_socket_, request, std::move(events));
}

void ModelProcess::AskLater() {
  again_.expires_after(kAskAgain);
  again_.async_wait([this](boost::system::error_code error) {
    if (!error) {
      Ask();
    }
  });
}

void ModelProcess::Unload() {
  stopping_ = true;
  again_.cancel();
  daemon_.Stop(kUnloadPatience);
}

void ModelProcess::OnExit(const DaemonProcess::Exit& exit) {
  again_.cancel();
  if (asking_ != nullptr) {
    asking_->Cancel();
    asking_.reset();
  }
  if (stopping_) {
    events_.on_gone(absl::OkStatus());
  } else if (!overdue_.empty()) {
    events_.on_gone(absl::UnavailableError(absl::StrCat(overdue_, "; ", LastWords(log_path_, kLogLines))));
  } else if (exit.killed && daemon_.MayRestart()) {
    events_.on_gone(absl::OkStatus());
  } else {
    events_.on_gone(absl::UnavailableError(
        absl::StrCat("its inferd ended (", exit.how, "): ", LastWords(log_path_, kLogLines))));
  }
}

}  // namespace sluice::cli
