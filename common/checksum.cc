#include "common/checksum.h"

#include <xxhash.h>

#include <bit>
#include <cstring>

namespace sluice {
namespace {

static_assert(std::endian::native == std::endian::little, "packs are little-endian and read in place");

Digest128 FromXxh(XXH128_hash_t hash) { return {hash.high64, hash.low64}; }

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

uint64_t ChunkChecksum(uint8_t file, uint64_t file_offset, absl::Span<const std::byte> chunk) {
  const uint64_t seed = (static_cast<uint64_t>(file) << 56) | file_offset;
  return XXH3_64bits_withSeed(chunk.data(), chunk.size(), seed);
}

std::string Digest128::ToHex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex(32, '0');
  for (int i = 0; i < 16; ++i) {
    hex[i] = kDigits[(high >> (60 - 4 * i)) & 0xf];
    hex[16 + i] = kDigits[(low >> (60 - 4 * i)) & 0xf];
  }
  return hex;
}

bool Digest128::FromHex(std::string_view hex, Digest128* digest) {
  if (hex.size() != 32) return false;
  Digest128 value;
  for (int i = 0; i < 32; ++i) {
    const int digit = HexValue(hex[i]);
    if (digit < 0) return false;
    uint64_t& half = i < 16 ? value.high : value.low;
    half = (half << 4) | static_cast<uint64_t>(digit);
  }
  *digest = value;
  return true;
}

Digest128 DigestOf(absl::Span<const std::byte> bytes) {
  return FromXxh(XXH3_128bits(bytes.data(), bytes.size()));
}

Digest128 DigestOf(std::string_view bytes) { return FromXxh(XXH3_128bits(bytes.data(), bytes.size())); }

struct Hasher128::State {
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> xxh{XXH3_createState()};
};

Hasher128::Hasher128() : state_(std::make_unique<State>()) { XXH3_128bits_reset(state_->xxh.get()); }
Hasher128::~Hasher128() = default;
Hasher128::Hasher128(Hasher128&&) noexcept = default;
Hasher128& Hasher128::operator=(Hasher128&&) noexcept = default;

void Hasher128::Update(absl::Span<const std::byte> bytes) {
  XXH3_128bits_update(state_->xxh.get(), bytes.data(), bytes.size());
}

void Hasher128::Update(std::string_view bytes) {
  XXH3_128bits_update(state_->xxh.get(), bytes.data(), bytes.size());
}

void Hasher128::UpdateU64(uint64_t value) { XXH3_128bits_update(state_->xxh.get(), &value, sizeof(value)); }

void Hasher128::UpdateSized(std::string_view bytes) {
  UpdateU64(bytes.size());
  Update(bytes);
}

Digest128 Hasher128::Finish() const { return FromXxh(XXH3_128bits_digest(state_->xxh.get())); }

}  // namespace sluice
