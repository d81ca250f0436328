#include "tests/cuda_fake/interp/shadow.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace sluice::cuda_fake {
namespace {

using Kind = Shadow::Conflict::Kind;

constexpr uint32_t kThreadBits = 0xffff;
constexpr uint32_t kWarpBits = 0x3e0;  // of a thread's number

bool Before(const Scope& scope, uint32_t earlier) {
  return earlier == 0 || earlier == scope.operation || scope.ordering == nullptr ||
         scope.ordering->IsBefore(earlier, scope.operation);
}

// Written without branches: they stand in loops that vectorise.
inline uint32_t SameThread(Who a, Who b) { return ((a ^ b) & kThreadBits) == 0; }
inline uint32_t SameWarp(Who a, Who b) {
  return (((a ^ b) & kWarpBits) == 0) & ((a & Shadow::kSeveral) == 0);
}
inline uint32_t SameSync(Who a, Who b) { return ((a ^ b) >> 16) == 0; }
// Orders two threads in one phase: the same thread, or ordered by a __syncwarp.
inline uint32_t Ordered(Who earlier, Who who) {
  return SameThread(earlier, who) | (SameWarp(earlier, who) & (SameSync(earlier, who) ^ 1));
}

inline uint32_t WriterIsFine(Phase phase, Who writer, const Scope& scope, Who who) {
  return (phase < scope.safe) | ((phase >= scope.block) & ((phase != scope.phase) | Ordered(writer, who)));
}
inline uint32_t ReaderIsFine(Phase phase, Who reader, const Scope& scope, Who who) {
  return (phase < scope.safe) | ((phase >= scope.block) & ((reader & kThreadBits) != Shadow::kSeveralBlocks) &
                                 ((phase != scope.phase) | Ordered(reader, who)));
}
// The readers of a word that had this one, of the same launch or done before, when `who` reads it too; and
// which of the bytes that were read are forgotten: all, where those before are ordered before it.
struct Readers {
  Who who;
  uint32_t forgotten;
};
inline Readers JoinReaders(Phase phase, Who reader, const Scope& scope, Who who) {
  const bool several_blocks =
      (phase >= scope.launch) & ((phase < scope.block) | ((reader & kThreadBits) == Shadow::kSeveralBlocks));
  const bool alone = (phase != scope.phase) | (Ordered(reader, who) != 0);
  const Who warp = (who & ~kThreadBits) | kWholeWarp | (who & kWarpBits);
  const Who joined = SameWarp(reader, who) != 0 ? warp : Shadow::kSeveral;
  const bool again = (phase == scope.phase) & (reader == who);
  return {several_blocks ? Shadow::kSeveralBlocks
          : alone        ? who
                         : joined,
          alone & !several_blocks & !again ? 0xfu : 0u};
}

template <typename T>
T* Zeros(uint64_t count) {
  return static_cast<T*>(std::calloc(count + 1, sizeof(T)));
}

}  // namespace

Shadow::Shadow(uint64_t bytes)
    : count_((bytes + 3) / 4),
      writer_phase_(Zeros<Phase>(count_)),
      writer_(Zeros<Who>(count_)),
      reader_phase_(Zeros<Phase>(count_)),
      reader_(Zeros<Who>(count_)),
      state_(Zeros<uint32_t>(count_)) {}

bool Shadow::ReadLanes(uint64_t offset, uint32_t lane_bytes, uint32_t lanes, const Scope& scope, Who first) {
  const uint32_t bytes = lane_bytes * ((first & kWholeWarp) != 0 ? 1 : lanes);
  if (offset % 4 != 0 || bytes % 4 != 0) {
    return false;
  }
  // Lanes that share a word count as their whole warp.
  const bool own_words = lane_bytes >= 4 && (first & kWholeWarp) == 0;
  const Who begin = own_words || lanes == 1 ? first & ~kWholeWarp
                                            : (first & ~kThreadBits) | kWholeWarp | (first & kWarpBits);
  const int shift = own_words ? std::countr_zero(lane_bytes / 4) : 31;
  const auto words = static_cast<int>(bytes / 4);
  const uint64_t at = offset / 4;
  const Phase* const writer_phase = &writer_phase_[at];
  const Who* const writer = &writer_[at];
  Phase* const reader_phase = &reader_phase_[at];
  Who* const reader = &reader_[at];
  uint32_t* const state = &state_[at];
  const uint32_t needed = kWritten | parts_;
  const Scope s = scope;
  uint32_t fine = 1;
  for (int i = 0; i < words; ++i) {
    const Who who = begin + (static_cast<uint32_t>(i) >> shift);
    const uint32_t unordered_reader = (reader_phase[i] >= s.safe) & (reader_phase[i] < s.launch);
    fine &= WriterIsFine(writer_phase[i], writer[i], s, who) & ((state[i] & needed) == needed) &
            (unordered_reader ^ 1);
  }
  if (fine == 0) {
    return false;
  }
#pragma GCC ivdep
  for (int i = 0; i < words; ++i) {
    const Who who = begin + (static_cast<uint32_t>(i) >> shift);
    reader[i] = JoinReaders(reader_phase[i], reader[i], s, who).who;
    reader_phase[i] = s.phase;
    state[i] |= 0xfu << kReaderBytes;
  }
  return true;
}

bool Shadow::WriteLanes(uint64_t offset, uint32_t lane_bytes, uint32_t lanes, const Scope& scope, Who first) {
  const uint32_t bytes = lane_bytes * lanes;
  if (offset % 4 != 0 || bytes % 4 != 0) {
    return false;
  }
  // The last of the lanes that share a word is its writer.
  const uint32_t sharing = lane_bytes < 4 ? 4 / lane_bytes : 1;
  const int shift = lanes == 1 ? 31 : lane_bytes < 4 ? 0 : std::countr_zero(lane_bytes / 4);
  const uint32_t last_bytes = lane_bytes < 4 ? 0xfu >> (4 - lane_bytes) << (4 - lane_bytes) & 0xfu : 0xfu;
  const Who begin = first + sharing - 1;
  const auto words = static_cast<int>(bytes / 4);
  const uint64_t at = offset / 4;
  Phase* const writer_phase = &writer_phase_[at];
  Who* const writer = &writer_[at];
  Phase* const reader_phase = &reader_phase_[at];
  Who* const reader = &reader_[at];
  uint32_t* const state = &state_[at];
  const uint32_t needed = parts_;
  const Scope s = scope;
  uint32_t fine = 1;
  for (int i = 0; i < words; ++i) {
    const Who who = begin + (static_cast<uint32_t>(i) >> shift) * sharing;
    fine &= WriterIsFine(writer_phase[i], writer[i], s, who) &
            ReaderIsFine(reader_phase[i], reader[i], s, who) &
            ((state[i] & (needed | kMoreReaders)) == needed);
  }
  // Lanes that share a word are one writer here, so that what one of them did before needs the closer look.
  for (int i = 0; sharing > 1 && i < words; ++i) {
    fine &= (writer_phase[i] != s.phase) & (reader_phase[i] != s.phase);
  }
  if (fine == 0) {
    return false;
  }
#pragma GCC ivdep
  for (int i = 0; i < words; ++i) {
    writer_phase[i] = s.phase;
    writer[i] = begin + (static_cast<uint32_t>(i) >> shift) * sharing;
    reader_phase[i] = 0;
    reader[i] = 0;
    state[i] = (state[i] & 0xfu << kParts) | kWritten | last_bytes << kWriterBytes;
  }
  return true;
}

uint32_t Shadow::ReadEach(const uint64_t* offsets, uint32_t mask, uint32_t bytes, const Scope& scope,
                          Who first) {
  const Scope s = scope;
  const uint32_t of_word = bytes < 4 ? (1u << bytes) - 1 : 0xfu;
  const uint32_t parts = parts_ != 0 ? 1 << kParts | 1 : 1;
  const uint64_t words = bytes < 4 ? 1 : bytes / 4;
  uint32_t left = 0;
  for (uint32_t lanes = mask; lanes != 0; lanes &= lanes - 1) {
    const int lane = std::countr_zero(lanes);
    const Who who = first + static_cast<uint32_t>(lane);
    const uint64_t at = offsets[lane] / 4;
    const uint32_t own = of_word << (offsets[lane] % 4);
    const uint32_t needed = own * parts;
    uint32_t fine = 1;
    for (uint64_t i = at; i < at + words; ++i) {
      const uint32_t unordered_reader = (reader_phase_[i] >= s.safe) & (reader_phase_[i] < s.launch);
      fine &= WriterIsFine(writer_phase_[i], writer_[i], s, who) & ((state_[i] & needed) == needed) &
              (unordered_reader ^ 1);
    }
    if (fine == 0) {
      left |= 1u << lane;
      continue;
    }
    for (uint64_t i = at; i < at + words; ++i) {
      const Readers readers = JoinReaders(reader_phase_[i], reader_[i], s, who);
      state_[i] = (state_[i] & ~(readers.forgotten << kReaderBytes)) | own << kReaderBytes;
      reader_[i] = readers.who;
      reader_phase_[i] = s.phase;
    }
  }
  return left;
}

uint32_t Shadow::WriteEach(const uint64_t* offsets, uint32_t mask, uint32_t bytes, const Scope& scope,
                           Who first) {
  const Scope s = scope;
  const uint32_t of_word = bytes < 4 ? (1u << bytes) - 1 : 0xfu;
  const uint64_t words = bytes < 4 ? 1 : bytes / 4;
  uint32_t left = 0;
  for (uint32_t lanes = mask; lanes != 0; lanes &= lanes - 1) {
    const int lane = std::countr_zero(lanes);
    const Who who = first + static_cast<uint32_t>(lane);
    const uint64_t at = offsets[lane] / 4;
    const uint32_t own = of_word << (offsets[lane] % 4);
    const uint32_t needed = parts_ != 0 ? own << kParts : 0;
    uint32_t fine = 1;
    for (uint64_t i = at; i < at + words; ++i) {
      fine &= WriterIsFine(writer_phase_[i], writer_[i], s, who) &
              ReaderIsFine(reader_phase_[i], reader_[i], s, who) &
              ((state_[i] & (needed | kMoreReaders)) == needed);
    }
    if (fine == 0) {
      left |= 1u << lane;
      continue;
    }
    for (uint64_t i = at; i < at + words; ++i) {
      writer_phase_[i] = s.phase;
      writer_[i] = who;
      reader_phase_[i] = 0;
      reader_[i] = 0;
      state_[i] = (state_[i] & (kWritten | 0xfu << kParts)) | own | own << kWriterBytes;
    }
  }
  return left;
}

void Shadow::CheckWriter(uint64_t index, AccessKind kind, const Scope& scope, Who who,
                         Conflict* conflict) const {
  const Phase phase = writer_phase_[index];
  const uint32_t thread = writer_[index] & kThreadBits;
  if (phase < scope.safe) {
    return;
  }
  if (phase < scope.launch) {
    const uint32_t operation = scope.phases->OperationOf(phase);
    if (!Before(scope, operation)) {
      *conflict = {Kind::kOperations, true, operation, thread};
    }
    return;
  }
  if ((state_[index] & kAtomicWriter) != 0 && kind == AccessKind::kAtomic) {
    return;
  }
  if (WriterIsFine(phase, writer_[index], scope, who) == 0) {
    *conflict = {phase < scope.block ? Kind::kBlocks : Kind::kThreads, true, scope.operation, thread};
  }
}

void Shadow::CheckReaders(uint64_t index, const Scope& scope, Who who, Conflict* conflict) const {
  const Phase phase = reader_phase_[index];
  if ((state_[index] & kMoreReaders) != 0) {
    for (const uint32_t operation : more_readers_.at(index)) {
      if (!Before(scope, operation)) {
        *conflict = {Kind::kOperations, false, operation, kSeveral};
        return;
      }
    }
  }
  if (phase == 0 || phase < scope.safe) {
    return;
  }
  const uint32_t thread = reader_[index] & kThreadBits;
  if (phase < scope.launch) {
    const uint32_t operation = scope.phases->OperationOf(phase);
    if (!Before(scope, operation)) {
      *conflict = {Kind::kOperations, false, operation, thread};
    }
    return;
  }
  if (ReaderIsFine(phase, reader_[index], scope, who) == 0) {
    const bool blocks = phase < scope.block || thread == kSeveralBlocks;
    *conflict = {blocks ? Kind::kBlocks : Kind::kThreads, false, scope.operation, thread};
  }
}

void Shadow::EnterReader(uint64_t index, uint32_t mask, const Scope& scope, Who who) {
  const Phase phase = reader_phase_[index];
  uint32_t& state = state_[index];
  if (phase >= scope.safe && phase < scope.launch) {
    const uint32_t operation = scope.phases->OperationOf(phase);
    if (!Before(scope, operation)) {
      state |= kMoreReaders;
      more_readers_[index].push_back(operation);
    }
  }
  const Readers readers = JoinReaders(phase, reader_[index], scope, who);
  state = (state & ~(readers.forgotten << kReaderBytes)) | mask << kReaderBytes;
  reader_[index] = readers.who;
  reader_phase_[index] = scope.phase;
}

void Shadow::AccessWord(uint64_t index, uint32_t mask, AccessKind kind, const Scope& scope, Who who,
                        Conflict* conflict) {
  uint32_t& state = state_[index];
  const bool asks = conflict->kind == Kind::kNone;
  if (asks && kind != AccessKind::kWrite && (state & mask) != mask) {
    *conflict = {Kind::kUninitialised, false, 0, 0};
  } else if (asks && (state >> kWriterBytes & mask) != 0) {
    CheckWriter(index, kind, scope, who, conflict);
  }
  if (kind == AccessKind::kRead) {
    EnterReader(index, mask, scope, who);
    return;
  }
  if (conflict->kind == Kind::kNone && (state >> kReaderBytes & mask) != 0) {
    CheckReaders(index, scope, who, conflict);
  }
  if ((state & kMoreReaders) != 0) {
    more_readers_.erase(index);
  }
  writer_phase_[index] = scope.phase;
  writer_[index] = who;
  reader_phase_[index] = 0;
  reader_[index] = 0;
  state = (state & (kWritten | 0xfu << kParts)) | mask | mask << kWriterBytes |
          (kind == AccessKind::kAtomic ? kAtomicWriter : 0);
}

Shadow::Conflict Shadow::Access(uint64_t offset, uint64_t bytes, AccessKind kind, const Scope& scope,
                                Who who) {
  Conflict conflict;
  constexpr uint64_t kMany = 1024;
  for (uint64_t at = offset; at < offset + bytes;) {
    const uint64_t left = offset + bytes - at;
    if (at % 4 == 0 && left >= 16) {
      const auto part = static_cast<uint32_t>(std::min(left, kMany) / 4 * 4);
      const bool entered = kind == AccessKind::kRead    ? ReadLanes(at, part, 1, scope, who | kWholeWarp)
                           : kind == AccessKind::kWrite ? WriteLanes(at, part, 1, scope, who)
                                                        : false;
      if (entered) {
        at += part;
        continue;
      }
    }
    const uint64_t end = std::min(offset + bytes, 4 * (at / 4 + 1));
    AccessWord(at / 4, ((1u << (end - at)) - 1) << (at % 4), kind, scope, who, &conflict);
    at = end;
  }
  return conflict;
}

void Shadow::BeginParts(uint64_t bytes) {
  parts_ = 0xfu << kParts;
  part_bits_.assign((bytes + 3) / 4, 0);
}

void Shadow::AddPart(uint64_t offset, uint64_t bytes) {
  for (uint64_t at = offset; at < offset + bytes; ++at) {
    part_bits_[at / 4] |= 1u << (kParts + at % 4);
  }
}

bool Shadow::IsPart(uint64_t offset, uint64_t bytes) const {
  const auto has = [&](uint64_t at) {
    return at / 4 < part_bits_.size() && (part_bits_[at / 4] >> (kParts + at % 4) & 1) != 0;
  };
  return has(offset) && has(offset + bytes - 1);
}

void Shadow::Clear() { std::memcpy(state_.get(), part_bits_.data(), part_bits_.size() * sizeof(uint32_t)); }

void Shadow::Poison(uint64_t offset, uint64_t bytes) {
  for (uint64_t at = offset; at < offset + bytes; ++at) {
    state_[at / 4] &= ~(1u << (at % 4));
  }
}

void Shadow::MarkWritten() {
  for (uint64_t i = 0; i < count_; ++i) {
    state_[i] |= kWritten;
  }
}

}  // namespace sluice::cuda_fake
