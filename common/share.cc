#include "common/share.h"

#include "absl/strings/numbers.h"

namespace sluice {

std::optional<double> ParsePercent(std::string_view text) {
  double percent = 0;
  if (text.empty() || text.back() != '%' ||
      !absl::SimpleAtod(absl::string_view(text.data(), text.size() - 1), &percent) ||
      !(percent > 0 && percent <= 100)) {
    return std::nullopt;
  }
  return percent;
}

}  // namespace sluice
