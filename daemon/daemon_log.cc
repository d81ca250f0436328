#include "daemon/daemon_log.h"

#include <spdlog/formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <sys/stat.h>
#include <syslog.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

int PriorityOf(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::critical:
      return LOG_CRIT;
    case spdlog::level::err:
      return LOG_ERR;
    case spdlog::level::warn:
      return LOG_WARNING;
    case spdlog::level::info:
      return LOG_INFO;
    default:
      return LOG_DEBUG;
  }
}

class JournalFormatter : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    const std::string line =
        JournalLine(message.level, std::string(message.payload.data(), message.payload.size()));
    out.append(line.data(), line.data() + line.size());
    out.push_back('\n');
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<JournalFormatter>(); }
};

}  // namespace

// The journal splits a message into lines and reads the level from the number in front of each line, so every
// line carries it.
std::string JournalLine(spdlog::level::level_enum level, const std::string& text) {
  const std::string prefix = absl::StrCat("<", PriorityOf(level), ">");
  std::string line = prefix;
  for (const char c : text) {
    line += c;
    if (c == '\n') {
      line += prefix;
    }
  }
  return line;
}

// systemd's JOURNAL_STREAM holds the device and inode of the stream that it gave. A redirected stderr is
// another file, and a person reads it.
bool IsJournalStream(int fd, const char* journal_stream) {
  struct stat status;
  return journal_stream != nullptr && fstat(fd, &status) == 0 &&
         absl::StrCat(status.st_dev, ":", status.st_ino) == journal_stream;
}

std::shared_ptr<spdlog::logger> NewDaemonLog(const std::string& name, const std::string& level) {
  std::shared_ptr<spdlog::logger> logger;
  if (IsJournalStream(STDERR_FILENO, std::getenv("JOURNAL_STREAM"))) {
    logger = std::make_shared<spdlog::logger>(name, std::make_shared<spdlog::sinks::stderr_sink_mt>());
    logger->set_formatter(std::make_unique<JournalFormatter>());
  } else {
    logger = std::make_shared<spdlog::logger>(name, std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %v");
  }
  logger->set_level(spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::info);
  return logger;
}

}  // namespace sluice
