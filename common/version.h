// The release that this build is, as `--version`, logs and metrics name it.
//
// Thread safety: thread-safe.
#pragma once

namespace sluice {

// "1.2.3"; lives as long as the process.
const char* Version();

}  // namespace sluice
