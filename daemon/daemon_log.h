// The log of a daemon: lines on standard error, with time and severity in words; under systemd's journal with
// the journal's priority prefix and without the time, which the journal adds.
//
// Thread safety: free functions, safe from any thread; the loggers are thread-safe.
#pragma once

#include <memory>
#include <string>

#include "spdlog/logger.h"

namespace sluice {

// `level` is one of debug, info, warning, error.
std::shared_ptr<spdlog::logger> NewDaemonLog(const std::string& name, const std::string& level);

// True if descriptor `fd` is the stream that `journal_stream`, the value of $JOURNAL_STREAM ("device:inode"),
// names. Null or any other value: false.
bool IsJournalStream(int fd, const char* journal_stream);

// A log line in the journal's form: "<4>text" for a warning, as syslog(3) numbers them.
std::string JournalLine(spdlog::level::level_enum level, const std::string& text);

}  // namespace sluice
