// Status codes in the text of logs.
//
// Thread safety: pure functions.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace sluice::cli {

// A status with `message` and the code whose name ("DATA_LOSS: ...") stands last in `text`; `otherwise` if no
// name does. A daemon that could not start leaves its reason in its log in that form.
absl::Status CodeFromText(const std::string& text, absl::StatusCode otherwise, const std::string& message);

}  // namespace sluice::cli
