#include "tests/cuda_fake/interp/shadow.h"

#include <algorithm>

namespace sluice::cuda_fake {
namespace {

using Kind = Shadow::Conflict::Kind;

bool Before(const Ordering* ordering, uint32_t earlier, uint32_t later) {
  return ordering == nullptr || ordering->IsBefore(earlier, later);
}

}  // namespace

Shadow::Shadow(uint64_t bytes)
    : count_((bytes + 3) / 4), words_(static_cast<Word*>(std::calloc(count_ + 1, sizeof(Word)))) {}

void Shadow::CheckWriter(const Word& word, AccessKind kind, const Accessor& who, const Ordering* ordering,
                         Conflict* conflict) {
  const Accessor& writer = word.writer;
  if (writer.operation == 0) {
    return;
  }
  if (writer.operation != who.operation) {
    if (!Before(ordering, writer.operation, who.operation)) {
      *conflict = {Kind::kOperations, true, writer};
    }
    return;
  }
  if (word.atomic && kind == AccessKind::kAtomic) {
    return;
  }
  if (writer.block != who.block) {
    *conflict = {Kind::kBlocks, true, writer};
    return;
  }
  const bool ordered = writer.thread == who.thread || writer.epoch != who.epoch ||
                       (writer.thread / 32 == who.thread / 32 && writer.sync != who.sync);
  if (!ordered) {
    *conflict = {Kind::kThreads, true, writer};
  }
}

void Shadow::CheckReaders(const Word& word, uint64_t index, const Accessor& who, const Ordering* ordering,
                          Conflict* conflict) {
  const Accessor& reader = word.reader;
  if (word.more_readers) {
    for (const uint32_t operation : more_readers_[index]) {
      if (operation != who.operation && !Before(ordering, operation, who.operation)) {
        *conflict = {Kind::kOperations, false, {operation}};
        return;
      }
    }
  }
  if (reader.operation == 0) {
    return;
  }
  if (reader.operation != who.operation) {
    if (!Before(ordering, reader.operation, who.operation)) {
      *conflict = {Kind::kOperations, false, reader};
    }
    return;
  }
  if (reader.block != who.block) {
    *conflict = {Kind::kBlocks, false, reader};
    return;
  }
  const bool one = (reader.thread & kWarpBit) == 0;
  const bool same_warp =
      reader.thread != kSeveral && (one ? reader.thread / 32 : reader.thread & ~kWarpBit) == who.thread / 32;
  const bool ordered = (one && reader.thread == who.thread) || reader.epoch != who.epoch ||
                       (same_warp && reader.sync != who.sync);
  if (!ordered) {
    *conflict = {Kind::kThreads, false, reader};
  }
}

void Shadow::EnterReader(Word* word, uint64_t index, const Accessor& who, const Ordering* ordering) {
  Accessor& reader = word->reader;
  if (reader.operation != who.operation) {
    if (reader.operation != 0 && !Before(ordering, reader.operation, who.operation)) {
      word->more_readers = true;
      more_readers_[index].push_back(reader.operation);
    }
    reader = who;
    return;
  }
  if (reader.block != who.block) {
    reader.block = kSeveralBlocks;
    return;
  }
  const uint16_t reader_warp =
      (reader.thread & kWarpBit) != 0 ? reader.thread & ~kWarpBit : reader.thread / 32;
  const bool before_sync =
      reader.thread != kSeveral && reader_warp == who.thread / 32 && reader.sync != who.sync;
  if (reader.epoch != who.epoch || before_sync) {
    reader = who;
  } else if (reader.thread == kSeveral || reader.thread == who.thread) {
    reader.sync = reader.thread == who.thread ? who.sync : reader.sync;
  } else {
    reader.thread = reader_warp == who.thread / 32 ? kWarpBit | reader_warp : kSeveral;
    reader.sync = who.sync;
  }
}

Shadow::Conflict Shadow::Access(uint64_t offset, uint64_t bytes, AccessKind kind, const Accessor& who,
                                const Ordering* ordering) {
  Conflict conflict;
  for (uint64_t at = offset; at < offset + bytes;) {
    const uint64_t index = at / 4;
    const uint64_t end = std::min(offset + bytes, 4 * (index + 1));
    const uint8_t mask = static_cast<uint8_t>(((1u << (end - at)) - 1) << (at % 4));
    at = end;
    Word& word = words_[index];
    if (kind != AccessKind::kWrite && (word.written & mask) != mask && conflict.kind == Kind::kNone) {
      conflict = {Kind::kUninitialised, false, word.writer};
    }
    if (conflict.kind == Kind::kNone && (word.writer_bytes & mask) != 0) {
      CheckWriter(word, kind, who, ordering, &conflict);
    }
    if (kind == AccessKind::kRead) {
      const Accessor before = word.reader;
      EnterReader(&word, index, who, ordering);
      const Accessor& now = word.reader;
      const bool same =
          before.operation == now.operation && before.epoch == now.epoch && before.sync == now.sync;
      word.reader_bytes = same ? word.reader_bytes | mask : mask;
      continue;
    }
    if (conflict.kind == Kind::kNone && (word.reader_bytes & mask) != 0) {
      CheckReaders(word, index, who, ordering, &conflict);
    }
    word.writer = who;
    word.written |= mask;
    word.writer_bytes = mask;
    word.reader_bytes = 0;
    word.atomic = kind == AccessKind::kAtomic;
    word.reader = {};
    if (word.more_readers) {
      word.more_readers = false;
      more_readers_.erase(index);
    }
  }
  return conflict;
}

void Shadow::Poison(uint64_t offset, uint64_t bytes) {
  for (uint64_t at = offset; at < offset + bytes; ++at) {
    words_[at / 4].written &= static_cast<uint8_t>(~(1u << (at % 4)));
  }
}

void Shadow::MarkWritten() {
  for (uint64_t i = 0; i < count_; ++i) {
    words_[i].written = 0xf;
  }
}

}  // namespace sluice::cuda_fake
