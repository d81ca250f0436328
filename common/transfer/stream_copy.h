// Copies that bypass the cache: the slab's reader comes later and reads more bytes than a cache holds, so
// ordinary stores would read every line first and evict the compute threads' data.
//
// Thread safety: free functions, safe to call from any thread on disjoint bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice {

// Prefetch distance in bytes. The hardware's prefetcher stops at page borders, and a row is shorter than its
// warm-up. Measured on gathers of 1 KiB rows: 0.70 of memcpy at 512 bytes, 0.75 at 1 KiB, 0.84 at 2 KiB and
// beyond (AMD); on whole experts 1.45 at 1 KiB, 1.55 at 2 KiB, 1.6 at 4 KiB (Intel).
inline constexpr uint64_t kPrefetchDistance = 4096;

// memcpy with stores that bypass the cache. They are ordered only by StreamFence(): call it before the bytes
// are announced. `next`, if not null, is a source that will be copied soon: it is prefetched while the last
// kPrefetchDistance bytes of this one are copied, because gathers of short rows wait for it. If rows are
// shorter than that, `next` is the row that far ahead.
void StreamCopy(std::byte* dest, const std::byte* source, uint64_t bytes, const std::byte* next = nullptr);
void StreamFence();

}  // namespace sluice
