#include "common/transfer/stream_copy.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

namespace sluice {
namespace {

constexpr uint64_t kLine = 64;
// Minimum size: a smaller copy would be all head and tail.
constexpr uint64_t kLeast = 256;

using LinesFn = void (*)(std::byte* dest, const std::byte* source, uint64_t body, const std::byte* next);

// Whole cache lines, rounded down to a line's beginning.
template <_mm_hint kHint>
__attribute__((target("avx2"))) void CopyLines(std::byte* dest, const std::byte* source, uint64_t body,
                                               const std::byte* next) {
  // Bytes behind a row are not fetched: they mostly belong to a neuron that was not requested.
  const uint64_t ahead = std::min(kPrefetchDistance, body);
  for (uint64_t i = 0; i < body; i += kLine) {
    if (i + ahead < body) {
      _mm_prefetch(reinterpret_cast<const char*>(source + i + ahead), kHint);
    } else if (next != nullptr) {
      _mm_prefetch(reinterpret_cast<const char*>(next + (i + ahead - body)), kHint);
    }
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + i));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + i + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(dest + i), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(dest + i + 32), high);
  }
}

// The cache level that prefetches go to decides the speed, and differs between makers. By transfer_bench,
// copies through the first level alone run at 1.45 of memcpy on an AMD Zen, and at 0.7 on an Intel Granite
// Rapids, which reaches 1.6 through its second level.
LinesFn PickLines() {
  __builtin_cpu_init();
  return __builtin_cpu_is("amd") ? CopyLines<_MM_HINT_NTA> : CopyLines<_MM_HINT_T1>;
}

}  // namespace

void StreamCopy(std::byte* dest, const std::byte* source, uint64_t bytes, const std::byte* next) {
  static const LinesFn copy_lines = PickLines();
  if (bytes < kLeast) {
    std::memcpy(dest, source, bytes);
    return;
  }
  const uint64_t head = (kLine - reinterpret_cast<uintptr_t>(dest) % kLine) % kLine;
  std::memcpy(dest, source, head);
  dest += head;
  source += head;
  bytes -= head;
  const uint64_t body = bytes / kLine * kLine;
  copy_lines(dest, source, body, next);
  std::memcpy(dest + body, source + body, bytes - body);
}

void StreamFence() { _mm_sfence(); }

}  // namespace sluice
