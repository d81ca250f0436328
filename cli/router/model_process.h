// The daemons of a server of several models as children in an event loop.
//
// WatchedDaemon: a daemon (supervisor.h) whose end the loop reports.
// ModelProcess: the inferd of one model: started, asked until it serves, ended.
//
// Include it only in sources that use Asio.
//
// Thread safety: all of it belongs to the io_context's one thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <string>
#include <utility>  // for Boost 1.74

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cli/router/upstream_call.h"
#include "cli/supervisor.h"

namespace sluice::cli {

class WatchedDaemon {
 public:
  using OnExit = std::function<void(DaemonProcess::Exit)>;

  // `lifeline`: read end that the daemon inherits; borrowed. `on_exit` may start the daemon again.
  WatchedDaemon(boost::asio::io_context& io, DaemonCommand command, int lifeline, OnExit on_exit);

  bool running() const { return process_.running(); }
  const std::string& name() const { return process_.name(); }
  absl::Status Start();
  // Sends SIGTERM, and SIGKILL after `patience`; on_exit reports the end.
  void Stop(absl::Duration patience);
  // False if it was killed too often within a moment.
  bool MayRestart() { return process_.MayRestart(); }

 private:
  void Watch();

  DaemonProcess process_;
  const int lifeline_;
  const OnExit on_exit_;
  boost::asio::posix::stream_descriptor exit_;
  boost::asio::steady_timer patience_;
};

class ModelProcess {
 public:
  struct Events {
    // The model serves.
    std::function<void()> on_loaded;
    // The process has ended. OK: as Stop() asked, or killed by a signal; else the reason why it cannot serve.
    std::function<void(absl::Status)> on_gone;
  };

  // `http_socket`: path of inferd's HTTP server; `log_path`: its log, for errors. `patience`: limit of a
  // start.
  ModelProcess(boost::asio::io_context& io, DaemonCommand command, int lifeline, std::string http_socket,
               absl::Duration patience, Events events);

  // Starts the process, then asks until it serves. An error of the start is reported by on_gone().
  void Load();
  // Asks whether a running process still serves: on_loaded() or on_gone() follows.
  void Probe();
  void Unload();
  bool running() const { return daemon_.running(); }
  const std::string& http_socket() const { return http_socket_; }

 private:
  void Ask();
  void AskLater();
  void OnExit(const DaemonProcess::Exit& exit);

  boost::asio::io_context& io_;
  const std::string http_socket_;
  const std::string log_path_;
  const absl::Duration patience_;
  const Events events_;
  WatchedDaemon daemon_;
  boost::asio::steady_timer again_;
  std::shared_ptr<UpstreamCall> asking_;
  absl::Time deadline_;
  bool stopping_ = false;
  std::string overdue_;  // not empty: the start was given up
};

}  // namespace sluice::cli
