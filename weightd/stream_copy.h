// Copies past the cache: the reader of a slab comes later and for more bytes than a cache holds, so ordinary
// stores would read every line first and evict what the compute threads use.
//
// Thread safety: free functions, safe to call from any thread on disjoint bytes.
#ifndef SLUICE_WEIGHTD_STREAM_COPY_H_
#define SLUICE_WEIGHTD_STREAM_COPY_H_

#include <cstddef>
#include <cstdint>

namespace sluice {

// memcpy with stores that bypass the cache. They are ordered only by StreamFence(): call it before the bytes
// are announced to anybody.
void StreamCopy(std::byte* dest, const std::byte* source, uint64_t bytes);
void StreamFence();

}  // namespace sluice

#endif  // SLUICE_WEIGHTD_STREAM_COPY_H_
