// The release of this build, as shown by `--version`, logs and metrics.
//
// Thread safety: thread-safe.
#pragma once

namespace sluice {

// "1.2.3"; lives as long as the process.
const char* Version();

}  // namespace sluice
