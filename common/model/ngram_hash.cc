#include "common/model/ngram_hash.h"

#include <algorithm>
#include <limits>

namespace sluice {
namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;
// Distance of the seeds of neighbouring layers.
constexpr uint64_t kLayerSeed = 10007;

uint64_t SplitMix64(uint64_t x) {
  x += kGolden;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// True for primes; divides by all odd numbers up to the root, at most 2^16 of them.
bool IsPrime(uint64_t n) {
  if (n < 4) return n > 1;
  if (n % 2 == 0) return false;
  for (uint64_t d = 3; d * d <= n; d += 2) {
    if (n % d == 0) return false;
  }
  return true;
}

// The first prime from `n` on.
uint64_t PrimeFrom(uint64_t n) {
  while (!IsPrime(n)) ++n;
  return n;
}

}  // namespace

NgramHash::NgramHash(const NgramConfig& ngrams, uint32_t vocab) : ngrams_(ngrams) {
  const uint64_t half =
      std::max<uint64_t>(1, static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) / vocab / 2);
  const uint64_t seed = ngrams.seed + kLayerSeed * ngrams.layer;
  for (uint32_t place = 0; place < ngrams.size; ++place) {
    factors_.push_back(static_cast<int64_t>(2 * (SplitMix64(seed + kGolden * (place + 1)) % half) + 1));
  }
  const uint32_t heads = NgramHeads(ngrams);
  uint64_t prime = PrimeFrom(ngrams.base);
  for (uint64_t used = 0; used < uint64_t{ngrams.layer} * heads; ++used) prime = PrimeFrom(prime + 1);
  uint64_t offset = 0;
  for (uint32_t head = 0; head < heads; ++head) {
    primes_.push_back(prime);
    offsets_.push_back(offset);
    offset += prime;
    prime = PrimeFrom(prime + 1);
  }
}

// The products fit 63 bits, since a factor is below 2^63 / vocab: hashes are never negative.
void NgramHash::FindRows(absl::Span<const int32_t> back, absl::Span<uint64_t> rows) const {
  uint64_t hash = 0;
  bool ended = false;
  for (uint32_t place = 0; place < ngrams_.size; ++place) {
    ended = ended || place >= back.size() || (place > 0 && static_cast<uint32_t>(back[place]) == ngrams_.end);
    const uint64_t token = ended ? ngrams_.end : static_cast<uint64_t>(back[place]);
    hash ^= token * static_cast<uint64_t>(factors_[place]);
    if (place == 0) continue;
    for (uint32_t head = (place - 1) * ngrams_.heads; head < place * ngrams_.heads; ++head) {
      rows[head] = offsets_[head] + hash % primes_[head];
    }
  }
}

}  // namespace sluice
