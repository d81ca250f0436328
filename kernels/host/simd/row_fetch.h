// Rows that are fetched into the second-level cache while others are computed.
//
// Five things decide whether memory keeps up (measured on Granite Rapids, one core of two).
//   - Lines must be asked for evenly, a few at a time: with 72 at once, computing in between, memory gave a
//     third less than with four or sixteen.
//   - They must come as streams of neighbouring lines, which the hardware follows: a core has 16 lines under
//     way that it asks for itself, a third of what memory gives it. Two streams in turn are best; rows here
//     and there reach half of what streams do, so they come in turn with one.
//   - They must come before the reader does. Rows that a mask keeps are known a block of others before they
//     are read, so either sort may be the more urgent one.
//   - They must not be far ahead. Lines that are fetched so stay for 150 KiB or so of others: 400 KiB ahead
//     costs a third of the bandwidth.
//   - What is read next comes next. Scales of 64 rows before their codes, because coefficients are rounded
//     with all of them, cost a tenth.
//
// Thread safety: each object belongs to one thread.
#pragma once

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

  // kAside: what fetches is kept out of the code around it, which weighted sums of q8 and q4 by panels gain a
  // tenth by and everything else loses by (GCC 12, Granite Rapids).
  template <bool kAside = false>
  __attribute__((always_inline)) void Step() {
    due_ += rate_;
    while (__builtin_expect(at_ < due_, kAside ? 0 : 1)) {
      Line::At(places_[0] + at_);
      Line::At(places_[1] + at_);
      at_ += 64;
    }
  }

 private:
  const uint8_t* places_[2] = {};
  uint32_t at_ = 0;
  uint32_t due_ = 0;
  uint32_t rate_ = 0;  // bytes of each place in a step
};
using LinesAhead = BasicLinesAhead<FetchLine>;

// What rows lie as: in a stream, or here and there.
enum class RowSort : uint8_t { kStream, kGathered };

// What will be read, and how far ahead of the reader it is fetched. What the reader comes to first comes
// first: see Reads().
template <class Line>
class BasicRowFetch {
 public:
  // Forgets everything. `distance`: how many bytes are fetched ahead.
  void Clear(uint32_t distance) {
    distance_ = distance / 64;
    ahead_ = done_ = piece_.lines = 0;
    for (Ranges& ranges : ranges_) {
      ranges.Clear();
    }
    read_[0] = read_[1] = 0;
    Reads(RowSort::kStream, UINT32_MAX / 2);
  }

  // From now on so many bytes are fetched ahead. What is farther ahead already stays.
  void SetDistance(uint32_t distance) { distance_ = distance / 64; }
  // Of gathered rows, what is still to be fetched.
  uint32_t gathered_bytes() const { return Of(RowSort::kGathered).lines() * 64; }

  // Lines of a sort that were added since Clear().
  uint32_t added(RowSort sort) const { return Of(sort).added(); }

  // Of a sort, everything that was added before added() was `end` has been read, and nothing else. What
  // readers count is rounded: without this a hundredth that is missing in every block adds up to the whole
  // distance, and what is fetched has been read before.
  void HasRead(RowSort sort, uint32_t end) {
    EndRead();
    read_[Index(sort)] = end;
    Of(sort).DropBefore(end);
    ahead_ = Ahead(RowSort::kStream) + Ahead(RowSort::kGathered);
  }

  uint32_t distance() const { return distance_ * 64; }

  // Bytes [begin, end) come next, begin < end: of a stream, or of rows that lie here and there. Each sort is
  // fetched in this order, both in turn. More ranges than there is room for are left to themselves.
  void AddStream(const uint8_t* begin, const uint8_t* end) { Of(RowSort::kStream).Add(begin, end); }
  void AddGathered(const uint8_t* begin, const uint8_t* end) { Of(RowSort::kGathered).Add(begin, end); }

  // So many bytes at each of two places come next, which are streams of their own: fetched in turn. As many
  // lines as lie at the first.
  void AddStreams(const uint8_t* a, const uint8_t* b, uint64_t bytes) {
    Of(RowSort::kStream).AddTwo(a, b, bytes);
  }

  // The next `lines` that are read are of this sort, then come some of the other; at first all are of the
  // stream. What the reader is about to come to is fetched alone: without it the sort of which more is read
  // falls behind. `in_any_order`: of the gathered rows that are read now or next, so many lines are not read
  // in the order in which they were added, so they are needed at once.
  void Reads(RowSort sort, uint32_t lines, uint32_t in_any_order = 0) {
    EndRead();
    reading_ = sort;
    lines_ = lines;
    near_[Index(RowSort::kGathered)] = kNear + in_any_order;
  }

  // `lines` of what was added are read in so many steps: what `out` is to fetch meanwhile. What is behind its
  // distance catches up at one and a half times the reader's pace.
  void Start(uint32_t lines, uint32_t steps, BasicLinesAhead<Line>* out) {
    ahead_ -= std::min(ahead_, lines);
    done_ += lines;
    uint32_t wanted = Wanted(lines);
    while (wanted > 1 && (piece_.lines > 0 || NextPiece())) {
      const uint32_t n = std::min(wanted / 2, piece_.lines);
      if (n >= wanted / 4) {
        const Piece taken = Take(n);
        return out->Start(taken.at[0], taken.at[1], n, steps);
      }
      FetchNow(n);  // the end of a row
      wanted -= 2 * n;
    }
  }

  // As many, all at once, before anything is read.
  void Advance(uint32_t lines) {
    uint32_t wanted = Wanted(lines);
    while (wanted > 1 && (piece_.lines > 0 || NextPiece())) {
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

    uint32_t streams() const { return other != nullptr ? 2 : 1; }
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
    void Clear() { first_ = count_ = lines_ = added_ = 0; }
    bool empty() const { return count_ == 0; }
    uint32_t lines() const { return lines_; }
    uint32_t added() const { return added_; }
    uint32_t taken() const { return added_ - lines_; }
    uint32_t front_lines() { return Nth(0).lines; }
    const uint8_t* front_other() { return Nth(0).other; }

    // The first n lines of range i.
    const uint8_t* Take(uint32_t i, uint32_t n) {
      lines_ -= n * Nth(i).streams();
      return Nth(i).Take(n);
    }

    // So many lines of what was added, from the first on, need not be taken.
    void DropBefore(uint32_t end) {
      while (count_ > 0 && taken() < end) {
        const uint32_t streams = Nth(0).streams();
        Take(0, std::min((end - taken() + streams - 1) / streams, Nth(0).lines));
        DropEmpty();
      }
    }

    void Add(const uint8_t* begin, const uint8_t* end) {
      const uintptr_t first = reinterpret_cast<uintptr_t>(begin) / 64;
      const uintptr_t last = (reinterpret_cast<uintptr_t>(end) - 1) / 64;
      if (count_ > 0) {
        Range& before = Nth(count_ - 1);
        const uintptr_t next = reinterpret_cast<uintptr_t>(before.at) / 64 + before.lines;
        if (before.other == nullptr && (first == next || first + 1 == next)) {
          before.lines += static_cast<uint32_t>(last + 1 - next);
          Count(static_cast<uint32_t>(last + 1 - next));
          return;
        }
      }
      if (count_ < kMost) {
        const uint32_t lines = static_cast<uint32_t>(last - first + 1);
        Nth(count_++) = {reinterpret_cast<const uint8_t*>(first * 64), lines};
        Count(lines);
      }
    }

    void AddTwo(const uint8_t* a, const uint8_t* b, uint64_t bytes) {
      if (count_ < kMost) {
        const uintptr_t first = reinterpret_cast<uintptr_t>(a) / 64;
        const uintptr_t last = (reinterpret_cast<uintptr_t>(a) + bytes - 1) / 64;
        const uintptr_t other = reinterpret_cast<uintptr_t>(b) / 64;
        const uint32_t lines = static_cast<uint32_t>(last + 1 - first);
        Nth(count_++) = {reinterpret_cast<const uint8_t*>(first * 64), lines,
                         reinterpret_cast<const uint8_t*>(other * 64)};
        Count(2 * lines);
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
    void Count(uint32_t lines) {
      lines_ += lines;
      added_ += lines;
    }

    Range ranges_[kMost];
    uint32_t first_ = 0;
    uint32_t count_ = 0;
    uint32_t lines_ = 0;  // of all
    uint32_t added_ = 0;
  };

  // Two places that are fetched in turn.
  struct Piece {
    const uint8_t* at[2] = {};
    RowSort sorts[2] = {};
    uint32_t lines = 0;  // of each

    uint32_t LinesOf(RowSort sort) const {
      return (sorts[0] == sort ? lines : 0) + (sorts[1] == sort ? lines : 0);
    }
  };

  // Lines: where the reader is so near to what is not fetched, that is fetched alone. Half or twice as much
  // made no difference at one token (Granite Rapids).
  static constexpr uint32_t kNear = 256;

  static constexpr uint32_t Index(RowSort sort) { return static_cast<uint32_t>(sort); }
  static constexpr RowSort Other(RowSort sort) {
    return sort == RowSort::kStream ? RowSort::kGathered : RowSort::kStream;
  }

  // Lines of a sort that were fetched and not yet read, but for those that are read now.
  uint32_t Ahead(RowSort sort) const {
    const uint32_t taken = Of(sort).taken();
    return taken - std::min(taken, read_[Index(sort)] + piece_.LinesOf(sort));
  }

  // What is read now counts as read.
  void EndRead() {
    read_[Index(reading_)] += done_;
    done_ = 0;
  }

  uint32_t Wanted(uint32_t lines) const {
    return std::min(distance_ - std::min(distance_, ahead_), lines + lines / 2);
  }

  // Of which sort the next lines are to be; both in turn: false.
  bool IsAlone(RowSort* sort) const {
    const RowSort other = Other(reading_);
    const uint32_t left = lines_ - std::min(lines_, done_);
    const uint32_t here = Ahead(reading_) - std::min(Ahead(reading_), done_);
    const uint32_t there = left + Ahead(other);
    if (Of(RowSort::kStream).empty() || Of(RowSort::kGathered).empty()) {
      *sort = Of(RowSort::kStream).empty() ? RowSort::kGathered : RowSort::kStream;
    } else if (here < left && here < near_[Index(reading_)]) {
      *sort = reading_;
    } else if (there < near_[Index(other)]) {
      *sort = other;
    } else {
      return false;
    }
    return true;
  }

  // Whether there is a piece: of two streams, of the stream and of a gathered row, of two neighbouring rows,
  // or two halves of what is next.
  __attribute__((noinline)) bool NextPiece() {
    Of(reading_).DropBefore(read_[Index(reading_)] + done_);  // too late for these
    while (piece_.lines == 0 && !(Of(RowSort::kStream).empty() && Of(RowSort::kGathered).empty())) {
      RowSort sort = RowSort::kStream;
      const bool alone = IsAlone(&sort);
      Ranges& from = Of(sort);
      const uint32_t lines = from.front_lines();
      if (const uint8_t* other = from.front_other(); other != nullptr) {
        piece_ = {{from.Take(0, lines), other}, {sort, sort}, lines};
      } else if (!alone) {
        Ranges& gathered = Of(RowSort::kGathered);
        const uint32_t n = std::min(lines, gathered.front_lines());
        piece_ = {{from.Take(0, n), gathered.Take(0, n)}, {sort, RowSort::kGathered}, n};
      } else if (from.StartsWithPair()) {
        piece_ = {{from.Take(0, lines), from.Take(1, lines)}, {sort, sort}, lines};
      } else if (lines > 1) {
        const uint32_t n = std::min(lines / 2, kPieceLines);
        const uint8_t* half = from.Take(0, n);
        piece_ = {{half, from.Take(0, n)}, {sort, sort}, n};
      } else {
        Line::At(from.Take(0, 1));
        ++ahead_;
      }
      for (Ranges& ranges : ranges_) {
        ranges.DropEmpty();
      }
    }
    return piece_.lines > 0;
  }

  Piece Take(uint32_t n) {
    const Piece taken = {{piece_.at[0], piece_.at[1]}, {}, n};
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

  Ranges& Of(RowSort sort) { return ranges_[Index(sort)]; }
  const Ranges& Of(RowSort sort) const { return ranges_[Index(sort)]; }

  Ranges ranges_[2];
  Piece piece_;
  uint32_t ahead_ = 0;  // lines that were fetched and not yet read
  uint32_t distance_ = 0;
  RowSort reading_ = RowSort::kStream;
  uint32_t lines_ = 0;     // that are read before one of the other sort
  uint32_t done_ = 0;      // of these, which have been read
  uint32_t read_[2] = {};  // of each sort, the lines before these, from Clear() on
  uint32_t near_[2] = {kNear, kNear};
};
using RowFetch = BasicRowFetch<FetchLine>;

}  // namespace sluice::host
