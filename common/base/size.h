// Sizes, durations and shares as people write them.
//
// Thread safety: pure functions, safe to call from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace sluice {

// Sizes and durations as people write them in flags, config files and messages: "512MiB", "2GB", "10m".

// Bytes of `text`: a decimal number, a fraction allowed, and a unit in any case. B or none: bytes; kB, MB,
// GB, TB, PB: powers of 1000; KiB..PiB and the bare K, M, G, T, P: powers of 1024. Spaces may stand around
// and between. A fraction of a byte is cut off. INVALID_ARGUMENT quoting `text`: no number, a sign, an
// unknown unit, or 2^64 and above.
absl::StatusOr<uint64_t> ParseSize(std::string_view text);

// `bytes` for people, in powers of 1024 with one decimal ("1.5 GiB"); below 1 KiB as "123 B".
std::string FormatSize(uint64_t bytes);

// Duration of `text`: a number, a fraction allowed, and ms, s, m, h or d; several may follow one another
// ("1h30m"); a bare number is seconds. INVALID_ARGUMENT quoting `text` for anything else, negative values
// included.
absl::StatusOr<absl::Duration> ParseTimeSpan(std::string_view text);

// `duration` for people, two units at most: "350ms", "12s", "3m05s", "2h10m". Negative shows as "0ms".
std::string FormatTimeSpan(absl::Duration duration);

// Shares as people write them: "50%".
//
// Thread safety: pure functions, safe to call from any thread.

// Parses the number before a final %, above 0 and at most 100; none for any other text.
std::optional<double> ParsePercent(std::string_view text);

}  // namespace sluice
