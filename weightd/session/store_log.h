// Log messages of weightd's core, kept in order until a caller without locks passes them to the log.
//
// Thread safety: StoreLog is thread-compatible; the core's lock guards it.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace sluice::weightd {

enum class LogSeverity { kInfo, kWarning, kError };
using LogFn = std::function<void(LogSeverity, const std::string&)>;

class StoreLog {
 public:
  using Messages = std::vector<std::pair<LogSeverity, std::string>>;

  void Say(LogSeverity severity, std::string message) {
    messages_.emplace_back(severity, std::move(message));
  }
  // Messages since the last call.
  Messages Take() { return std::exchange(messages_, {}); }

 private:
  Messages messages_;
};

}  // namespace sluice::weightd
