#include "weightd/stream_copy.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

namespace sluice {
namespace {

constexpr uint64_t kLine = 64;
// Below this a copy is all head and tail.
constexpr uint64_t kLeast = 256;

}  // namespace

__attribute__((target("avx2"))) void StreamCopy(std::byte* dest, const std::byte* source, uint64_t bytes,
                                                const std::byte* next) {
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
  // What lies behind a row is not fetched: it is mostly a neuron that nobody asked for.
  const uint64_t ahead = std::min(kStreamAhead, body);
  for (uint64_t i = 0; i < body; i += kLine) {
    if (i + ahead < body) {
      _mm_prefetch(reinterpret_cast<const char*>(source + i + ahead), _MM_HINT_NTA);
    } else if (next != nullptr) {
      _mm_prefetch(reinterpret_cast<const char*>(next + (i + ahead - body)), _MM_HINT_NTA);
    }
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + i));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + i + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(dest + i), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(dest + i + 32), high);
  }
  std::memcpy(dest + body, source + body, bytes - body);
}

void StreamFence() { _mm_sfence(); }

}  // namespace sluice
