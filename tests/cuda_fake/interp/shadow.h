// Who last wrote and read each 4-byte word of a memory, and which bytes hold anything at all: what races,
// missing waits and uninitialised reads are found by.
//
// Two accesses to a word, one of them a write, must be ordered. Within a launch and block: by a barrier
// ("Calling
// __syncthreads() ... all global and shared memory accesses made by these threads prior to __syncthreads()
// are visible to all threads in the block", CUDA C++ Programming Guide, Synchronization Functions), or,
// within a warp, by __syncwarp
// ("guarantees memory ordering among threads participating in the barrier", same section); shuffles and votes
// order nothing ("These intrinsics do not imply a memory barrier", Warp Vote Functions). Blocks of a launch:
// by nothing this check knows, so each such pair is a race, unless both are atomic. Operations: by the order
// of streams, events and host waits, which `Ordering` knows.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace sluice::cuda_fake {

// Operations have numbers from 1 on, given at their submission.
class Ordering {
 public:
  virtual ~Ordering() = default;
  // Whether `earlier` is known to be done before `later` begins.
  virtual bool IsBefore(uint32_t earlier, uint32_t later) const = 0;
  // "kernel Norm in stream 2".
  virtual std::string NameOf(uint32_t operation) const = 0;
};

// Who accesses: a thread of a launch, or a copy (thread 0 of block 0).
struct Accessor {
  uint32_t operation = 0;
  uint32_t block = 0;
  uint16_t thread = 0;
  uint16_t epoch = 0;  // barriers its block has passed
  uint16_t sync = 0;   // __syncwarps its warp has passed
};

enum class AccessKind : uint8_t { kRead, kWrite, kAtomic };

class Shadow {
 public:
  explicit Shadow(uint64_t bytes);

  struct Conflict {
    enum class Kind { kNone, kUninitialised, kThreads, kBlocks, kOperations };
    Kind kind = Kind::kNone;
    bool other_wrote = false;  // the earlier access was a write
    Accessor other;            // its thread is kSeveral if several read
  };
  static constexpr uint16_t kSeveral = 0xffff;
  static constexpr uint32_t kSeveralBlocks = 0xffffffff;

  // Enters an access to [offset, offset + bytes), which must lie inside; says the first conflict in it.
  Conflict Access(uint64_t offset, uint64_t bytes, AccessKind kind, const Accessor& who,
                  const Ordering* ordering);

  // The bytes hold nothing any more.
  void Poison(uint64_t offset, uint64_t bytes);
  // All bytes hold something, whoever has written it.
  void MarkWritten();

 private:
  struct Word {
    Accessor writer;
    Accessor reader;           // thread: kSeveral, or kWarpBit | warp for several of one warp
    uint8_t written = 0;       // a bit a byte
    uint8_t writer_bytes = 0;  // those of the last write: neighbours in a word are no race
    uint8_t reader_bytes = 0;  // those of the readers
    bool atomic = false;       // the writer was atomic
    bool more_readers = false;
  };
  static constexpr uint16_t kWarpBit = 0x8000;

  void CheckWriter(const Word& word, AccessKind kind, const Accessor& who, const Ordering* ordering,
                   Conflict* conflict);
  void CheckReaders(const Word& word, uint64_t index, const Accessor& who, const Ordering* ordering,
                    Conflict* conflict);
  void EnterReader(Word* word, uint64_t index, const Accessor& who, const Ordering* ordering);

  struct Free {
    void operator()(Word* words) const { std::free(words); }
  };
  // Zeros are a word that nobody has touched, so that untouched memory costs nothing.
  uint64_t count_ = 0;
  std::unique_ptr<Word[], Free> words_;
  // Operations that read a word and are not ordered before its `reader`.
  std::unordered_map<uint64_t, std::vector<uint32_t>> more_readers_;
};

}  // namespace sluice::cuda_fake
