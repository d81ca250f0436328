// Layout of a page of the KV cache, for engines that size caches and for kernels. One page of one layer, of K
// or of V: values [kv head][32 tokens][head_dim] in the cache's type; q8 has codes (int8) there, followed by
// float32 scales [kv head][32 tokens].
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace sluice {

inline constexpr uint32_t KvValueBytes(KvType type) {
  return type == KvType::kF32 ? 4 : type == KvType::kF16 ? 2 : 1;
}

// Bytes of one (token, head) row of values.
inline constexpr uint64_t KvRowBytes(KvType type, uint32_t head_dim) {
  return uint64_t{head_dim} * KvValueBytes(type);
}

// Offset of a row of values in its page.
inline constexpr uint64_t KvRowOffset(KvType type, uint32_t head_dim, uint32_t kv_head, uint32_t token) {
  return (uint64_t{kv_head} * kPageTokens + token) * KvRowBytes(type, head_dim);
}

// Offset of a row's scale in its page (q8 only), a multiple of 4.
inline constexpr uint64_t KvScaleOffset(uint32_t kv_heads, uint32_t head_dim, uint32_t kv_head,
                                        uint32_t token) {
  return uint64_t{kv_heads} * kPageTokens * head_dim + (uint64_t{kv_head} * kPageTokens + token) * 4;
}

// Bytes of one page of K (and of V, if there is V).
inline constexpr uint64_t KvPageBytes(KvType type, uint32_t kv_heads, uint32_t head_dim) {
  return uint64_t{kv_heads} * kPageTokens * (KvRowBytes(type, head_dim) + (type == KvType::kQ8 ? 4 : 0));
}

// Bytes of a page of K and its page of V; of K alone where values lie within K rows (value_dim < head_dim;
// 0: head_dim).
inline constexpr uint64_t KvPairBytes(KvType type, uint32_t kv_heads, uint32_t head_dim, uint32_t value_dim) {
  return (value_dim == 0 || value_dim == head_dim ? 2 : 1) * KvPageBytes(type, kv_heads, head_dim);
}

}  // namespace sluice
