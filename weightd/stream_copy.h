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
// `next`, if not null, is where the following copy's source begins: its first lines are fetched while this
// one ends, which is what gathers of short rows wait for.
void StreamCopy(std::byte* dest, const std::byte* source, uint64_t bytes, const std::byte* next = nullptr);
void StreamFence();

}  // namespace sluice

#endif  // SLUICE_WEIGHTD_STREAM_COPY_H_
