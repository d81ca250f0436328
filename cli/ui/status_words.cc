#include "cli/ui/status_words.h"

namespace sluice::cli {

absl::Status CodeFromText(const std::string& text, absl::StatusCode otherwise, const std::string& message) {
  absl::StatusCode code = otherwise;
  size_t last = 0;  // one past the place of the best find
  for (int number = 1; number <= 16; ++number) {
    const auto candidate = static_cast<absl::StatusCode>(number);
    const size_t at = text.rfind(absl::StatusCodeToString(candidate) + ": ");
    if (at != std::string::npos && at + 1 > last) {
      code = candidate;
      last = at + 1;
    }
  }
  return absl::Status(code, message);
}

}  // namespace sluice::cli
