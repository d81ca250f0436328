// The log of a daemon: lines on standard error, with time and severity in words; where systemd's journal
// reads them, with the priority that it understands and without the time, which it has.
//
// Thread safety: free functions, safe from any thread; the loggers are thread-safe.
#pragma once

#include <memory>
#include <string>

#include "spdlog/logger.h"

namespace sluice {

// `level` is one of debug, info, warning, error.
std::shared_ptr<spdlog::logger> NewDaemonLog(const std::string& name, const std::string& level);

// Whether descriptor `fd` is the stream that `journal_stream`, the value of $JOURNAL_STREAM
// ("device:inode"), names. Null or something else: it is not.
bool IsJournalStream(int fd, const char* journal_stream);

// A line of the log as the journal takes it: "<4>text" for a warning, as syslog(3) numbers them.
std::string JournalLine(spdlog::level::level_enum level, const std::string& text);

}  // namespace sluice
