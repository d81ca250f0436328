// The last writer and readers of each 4-byte word of a memory, and the bytes that hold anything at all.
// Races, missing waits and uninitialised reads are found by it.
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
// Most accesses are a warp's, its lanes side by side, to words that nobody uses in a way that matters: these
// are checked and entered by loops over arrays (ReadLanes, WriteLanes), the others word by word (Access).
//
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/cuda_fake/interp/phases.h"

namespace sluice::cuda_fake {

// Operations have numbers from 1 on, given at their submission.
class Ordering {
 public:
  virtual ~Ordering() = default;
  // True if `earlier` is known to be done before `later` begins.
  virtual bool IsBefore(uint32_t earlier, uint32_t later) const = 0;
  // "kernel Norm in stream 2".
  virtual std::string NameOf(uint32_t operation) const = 0;
};

// The accessor: a block in one of its phases, or a copy.
struct Scope {
  uint32_t operation = 0;
  Phase phase = 0;
  Phase block = 0;   // the first phase of the block,
  Phase launch = 0;  // and of the operation
  Phase safe = 0;    // what has run in phases below is known to be done before the operation begins
  Phases* phases = nullptr;
  const Ordering* ordering = nullptr;  // nullptr: every other operation is before
};

// The thread of the block that accesses: its number, and in the upper half the count of __syncwarps that its
// warp has passed.
using Who = uint32_t;
inline constexpr Who kWholeWarp = 0x4000;  // with a thread's number: several threads of its warp, as readers

enum class AccessKind : uint8_t { kRead, kWrite, kAtomic };

class Shadow {
 public:
  explicit Shadow(uint64_t bytes);

  struct Conflict {
    enum class Kind { kNone, kUninitialised, kThreads, kBlocks, kOperations };
    Kind kind = Kind::kNone;
    bool other_wrote = false;  // the earlier access was a write
    uint32_t operation = 0;    // the earlier access's
    uint32_t thread = 0;       // kSeveral and up: more than one
  };
  static constexpr uint32_t kSeveral = 0x8000;
  static constexpr uint32_t kSeveralBlocks = 0x8001;

  // Enters an access to [offset, offset + bytes), which must lie inside; says the first conflict in it.
  Conflict Access(uint64_t offset, uint64_t bytes, AccessKind kind, const Scope& scope, Who who);

  // Enters the accesses of `lanes` threads from `first` on, `lane_bytes` each, one behind the other from
  // `offset` on. False where this takes a closer look: nothing is entered then. kWholeWarp in `first`: all of
  // them read the whole.
  bool ReadLanes(uint64_t offset, uint32_t lane_bytes, uint32_t lanes, const Scope& scope, Who first);
  bool WriteLanes(uint64_t offset, uint32_t lane_bytes, uint32_t lanes, const Scope& scope, Who first);

  // Enters the accesses of the lanes of `mask` to `bytes` at offsets[lane], which must lie inside; lane 0 is
  // `first`. Returns the lanes that take a closer look: of these nothing is entered.
  uint32_t ReadEach(const uint64_t* offsets, uint32_t mask, uint32_t bytes, const Scope& scope, Who first);
  uint32_t WriteEach(const uint64_t* offsets, uint32_t mask, uint32_t bytes, const Scope& scope, Who first);

  // Only bytes that are a part of something may be accessed by lanes; for shared memory, where Access()'s
  // caller asks IsPart() first. Applies to the first `bytes`, or to all if there are fewer.
  void BeginParts(uint64_t bytes);
  void AddPart(uint64_t offset, uint64_t bytes);
  bool IsPart(uint64_t offset, uint64_t bytes) const;
  // Nothing holds anything: a block begins.
  void Clear();
  uint64_t bytes() const { return 4 * count_; }

  // The bytes hold nothing any more.
  void Poison(uint64_t offset, uint64_t bytes);
  // All bytes hold something, whoever has written it.
  void MarkWritten();

 private:
  // Fields of a word's state, four bits each: bytes that hold something; that the readers read; that the last
  // write wrote (neighbours in a word are no race); that are a part of a variable.
  static constexpr uint32_t kWritten = 0xf;
  static constexpr int kReaderBytes = 4;
  static constexpr int kWriterBytes = 8;
  static constexpr int kParts = 16;
  static constexpr uint32_t kAtomicWriter = 1 << 12;
  static constexpr uint32_t kMoreReaders = 1 << 13;

  void AccessWord(uint64_t index, uint32_t mask, AccessKind kind, const Scope& scope, Who who,
                  Conflict* conflict);
  void CheckWriter(uint64_t index, AccessKind kind, const Scope& scope, Who who, Conflict* conflict) const;
  void CheckReaders(uint64_t index, const Scope& scope, Who who, Conflict* conflict) const;
  void EnterReader(uint64_t index, uint32_t mask, const Scope& scope, Who who);

  struct Free {
    void operator()(void* words) const { std::free(words); }
  };
  template <typename T>
  using Words = std::unique_ptr<T[], Free>;
  // Zeros are a word that nobody has touched, so that untouched memory costs nothing.
  uint64_t count_ = 0;
  Words<Phase> writer_phase_;
  Words<Who> writer_;
  Words<Phase> reader_phase_;
  Words<Who> reader_;
  Words<uint32_t> state_;
  uint32_t parts_ = 0;               // what of kParts accesses by lanes need
  std::vector<uint32_t> part_bits_;  // the state of each word when a block begins
  // Operations that read a word and are not ordered before its reader.
  std::unordered_map<uint64_t, std::vector<uint32_t>> more_readers_;
};

}  // namespace sluice::cuda_fake
