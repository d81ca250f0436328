// Rows that are fetched into the second-level cache while others are computed.
//
// Four things decide whether memory keeps up (measured on Granite Rapids, one core of two).
//   - Lines must be asked for evenly, a few at a time: with 72 at once, computing in between, memory gave a
//     third less than with four or sixteen.
//   - They must come as streams of neighbouring lines, which the hardware follows: a core has 16 lines under
//     way that it asks for itself, a third of what memory gives it. Two streams in turn are best; rows here
//     and there reach half of what streams do, so they come in turn with one.
//   - They must not be far ahead. Lines that are fetched so stay for 150 KiB or so of others: 400 KiB ahead
//     costs a third of the bandwidth.
//   - What is read next comes next. Scales of 64 rows before their codes, because coefficients are rounded
//     with all of them, cost a tenth.
//
// Thread safety: each object belongs to one thread.
#ifndef SLUICE_KERNELS_HOST_ROW_FETCH_H_
#define SLUICE_KERNELS_HOST_ROW_FETCH_H_

#include <algorithm>
#include <cstdint>

namespace sluice::host {

// The i-th of some rows that lie one after the other and are read in turn from both halves: memory gives a
// core a tenth more where it reads and fetches two streams that lie apart than one, or than neighbours
// (Granite Rapids).
inline uint32_t InHalves(uint32_t i, uint32_t rows) { return i / 2 + (i % 2 != 0 ? (rows + 1) / 2 : 0); }

// How a line is fetched; tests note it instead. Always inlined: GCC takes a function that only prefetches for
// one that does nothing, and drops calls of it.
struct FetchLine {
  __attribute__((always_inline)) static void At(const uint8_t* line) { __builtin_prefetch(line, 0, 2); }
};

// Lines at two places that are fetched in turn, evenly over so many steps.
template <class Line>
class BasicLinesAhead {
 public:
  BasicLinesAhead() = default;  // fetches nothing

  // `lines` at each place. REQUIRES steps > 0, and no more Step()s than that.
  void Start(const uint8_t* a, const uint8_t* b, uint32_t lines, uint32_t steps) {
    places_[0] = a;
    places_[1] = b;
    at_ = 0;
    rate_ = lines * 64 / steps;
    due_ = lines * 64 - rate_ * steps;
  }

  __attribute__((always_inline)) void Step() {
    due_ += rate_;
    for (; at_ < due_; at_ += 64) {
      Line::At(places_[0] + at_);
      Line::At(places_[1] + at_);
    }
  }

 private:
  const uint8_t* places_[2] = {};
  uint32_t at_ = 0;
  uint32_t due_ = 0;
  uint32_t rate_ = 0;  // bytes of each place in a step
};
using LinesAhead = BasicLinesAhead<FetchLine>;

// What will be read, and how far ahead of the reader it is fetched.
template <class Line>
class BasicRowFetch {
 public:
  // Forgets everything. `distance`: how many bytes are fetched ahead.
  void Clear(uint32_t distance) {
    distance_ = distance / 64;
    ahead_ = piece_.lines = 0;
    in_turn_ = UINT32_MAX;
    stream_.Clear();
    gathered_.Clear();
  }

  // From now on so many bytes are fetched ahead. What is farther ahead already stays.
  void SetDistance(uint32_t distance) { distance_ = distance / 64; }
  // Of gathered rows, what is still to be fetched.
  uint32_t gathered_bytes() const { return gathered_.lines() * 64; }

  uint32_t distance() const { return distance_ * 64; }

  // Bytes [begin, end) come next, begin < end: of a stream, or of rows that lie here and there. Each sort is
  // fetched in this order, both in turn: see TakeInTurn(). More ranges than there is room for are left to
  // themselves.
  void AddStream(const uint8_t* begin, const uint8_t* end) { stream_.Add(begin, end); }
  void AddGathered(const uint8_t* begin, const uint8_t* end) { gathered_.Add(begin, end); }

  // So many bytes at each of two places come next, which are streams of their own: fetched in turn. As many
  // lines as lie at the first.
  void AddStreams(const uint8_t* a, const uint8_t* b, uint64_t bytes) { stream_.AddTwo(a, b, bytes); }

  // While more than so many gathered lines are waiting, they do not come in turn with the stream but alone.
  // Without it they would fall behind for good where more of them are read than of the stream.
  void TakeInTurn(uint32_t lines) { in_turn_ = lines; }

  // `lines` of what was added are read in so many steps: what `out` is to fetch meanwhile. What is behind its
  // distance catches up at one and a half times the reader's pace.
  void Start(uint32_t lines, uint32_t steps, BasicLinesAhead<Line>* out) {
    uint32_t wanted = Wanted(lines);
    while (wanted > 1 && NextPiece()) {
      const uint32_t n = std::min(wanted / 2, piece_.lines);
      if (n >= wanted / 4) {
        const Piece taken = Take(n);
        return out->Start(taken.at[0], taken.at[1], n, steps);
      }
      FetchNow(n);  // the end of a row
      wanted -= 2 * n;
    }
  }

  // The same, all at once.
  void Advance(uint32_t lines) {
    uint32_t wanted = Wanted(lines);
    while (wanted > 1 && NextPiece()) {
      const uint32_t n = std::min(wanted / 2, piece_.lines);
      FetchNow(n);
      wanted -= 2 * n;
    }
  }

 private:
  // Of each place. With half of it weighted sums and experts of q8 and q4 lost one to three hundredths of the
  // bandwidth; twice as much gained nothing (Granite Rapids).
  static constexpr uint32_t kPieceLines = 128;
  static constexpr uint32_t kRowLines = 128;  // the longest rows that are fetched as a pair

  struct Range {
    const uint8_t* at = nullptr;
    uint32_t lines = 0;
    const uint8_t* other = nullptr;  // the second of two streams, of as many lines

    // The first n lines.
    const uint8_t* Take(uint32_t n) {
      const uint8_t* from = at;
      at += uint64_t{n} * 64;
      other += other != nullptr ? uint64_t{n} * 64 : 0;
      lines -= n;
      return from;
    }
  };

  // Ranges of whole lines in order. None is empty.
  class Ranges {
   public:
    void Clear() { first_ = count_ = lines_ = 0; }
    bool empty() const { return count_ == 0; }
    uint32_t lines() const { return lines_; }
    uint32_t front_lines() { return Nth(0).lines; }
    const uint8_t* front_other() { return Nth(0).other; }

    // The first n lines of range i.
    const uint8_t* Take(uint32_t i, uint32_t n) {
      lines_ -= n;
      return Nth(i).Take(n);
    }

    void Add(const uint8_t* begin, const uint8_t* end) {
      const uintptr_t first = reinterpret_cast<uintptr_t>(begin) / 64;
      const uintptr_t last = (reinterpret_cast<uintptr_t>(end) - 1) / 64;
      if (count_ > 0) {
        Range& before = Nth(count_ - 1);
        const uintptr_t next = reinterpret_cast<uintptr_t>(before.at) / 64 + before.lines;
        if (before.other == nullptr && (first == next || first + 1 == next)) {
          before.lines += static_cast<uint32_t>(last + 1 - next);
          lines_ += static_cast<uint32_t>(last + 1 - next);
          return;
        }
      }
      if (count_ < kMost) {
        const uint32_t lines = static_cast<uint32_t>(last - first + 1);
        Nth(count_++) = {reinterpret_cast<const uint8_t*>(first * 64), lines};
        lines_ += lines;
      }
    }

    void AddTwo(const uint8_t* a, const uint8_t* b, uint64_t bytes) {
      if (count_ < kMost) {
        const uintptr_t first = reinterpret_cast<uintptr_t>(a) / 64;
        const uintptr_t last = (reinterpret_cast<uintptr_t>(a) + bytes - 1) / 64;
        const uintptr_t other = reinterpret_cast<uintptr_t>(b) / 64;
        Nth(count_++) = {reinterpret_cast<const uint8_t*>(first * 64),
                         static_cast<uint32_t>(last + 1 - first),
                         reinterpret_cast<const uint8_t*>(other * 64)};
        lines_ += static_cast<uint32_t>(last + 1 - first);
      }
    }

    // Two neighbours of one length, not long: rows.
    bool StartsWithPair() {
      return count_ > 1 && Nth(0).lines == Nth(1).lines && Nth(0).lines <= kRowLines &&
             Nth(1).other == nullptr;
    }

    // The first ranges may have been used up.
    void DropEmpty() {
      while (count_ > 0 && Nth(0).lines == 0) {
        first_ = (first_ + 1) % kMost;
        --count_;
      }
    }

   private:
    static constexpr uint32_t kMost = 512;

    Range& Nth(uint32_t i) { return ranges_[(first_ + i) % kMost]; }

    Range ranges_[kMost];
    uint32_t first_ = 0;
    uint32_t count_ = 0;
    uint32_t lines_ = 0;  // of all; of two streams those of one
  };

  // Two places that are fetched in turn.
  struct Piece {
    const uint8_t* at[2] = {};
    uint32_t lines = 0;  // of each
  };

  uint32_t Wanted(uint32_t lines) {
    ahead_ -= std::min(ahead_, lines);
    return std::min(distance_ - std::min(distance_, ahead_), lines + lines / 2);
  }

  // Whether there is a piece: of two streams, of the stream and of a gathered row, of two neighbouring rows,
  // or two halves of what is next.
  bool NextPiece() {
    while (piece_.lines == 0 && !(stream_.empty() && gathered_.empty())) {
      const bool alone = stream_.empty() || gathered_.lines() > in_turn_;
      Ranges& from = alone ? gathered_ : stream_;
      const uint32_t lines = from.front_lines();
      if (const uint8_t* other = from.front_other(); other != nullptr) {
        piece_ = {{from.Take(0, lines), other}, lines};
      } else if (!alone && !gathered_.empty()) {
        const uint32_t n = std::min(lines, gathered_.front_lines());
        piece_ = {{stream_.Take(0, n), gathered_.Take(0, n)}, n};
      } else if (from.StartsWithPair()) {
        piece_ = {{from.Take(0, lines), from.Take(1, lines)}, lines};
      } else if (lines > 1) {
        const uint32_t n = std::min(lines / 2, kPieceLines);
        const uint8_t* half = from.Take(0, n);
        piece_ = {{half, from.Take(0, n)}, n};
      } else {
        Line::At(from.Take(0, 1));
        ++ahead_;
      }
      stream_.DropEmpty();
      gathered_.DropEmpty();
    }
    return piece_.lines > 0;
  }

  Piece Take(uint32_t n) {
    const Piece taken = {{piece_.at[0], piece_.at[1]}, n};
    for (const uint8_t*& at : piece_.at) {
      at += uint64_t{n} * 64;
    }
    piece_.lines -= n;
    ahead_ += 2 * n;
    return taken;
  }

  void FetchNow(uint32_t n) {
    const Piece taken = Take(n);
    for (uint64_t at = 0; at < uint64_t{n} * 64; at += 64) {
      Line::At(taken.at[0] + at);
      Line::At(taken.at[1] + at);
    }
  }

  Ranges stream_;
  Ranges gathered_;
  Piece piece_;
  uint32_t ahead_ = 0;  // lines that were fetched and not yet read
  uint32_t distance_ = 0;
  uint32_t in_turn_ = UINT32_MAX;
};
using RowFetch = BasicRowFetch<FetchLine>;

}  // namespace sluice::host

#endif  // SLUICE_KERNELS_HOST_ROW_FETCH_H_
