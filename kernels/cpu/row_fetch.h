// Fetches rows into the second-level cache while others are computed.
//
// Five rules keep memory busy (measured on Granite Rapids, one core of two).
//   - Lines must be requested evenly, a few at a time: with 72 at once, computing in between, the bandwidth
//   was
//     a third less than with four or sixteen.
//   - Lines must form streams of neighbours, which the hardware follows: a core has 16 lines in flight of its
//     own requests, a third of memory's bandwidth. Two streams in turn are best; scattered rows reach half of
//     a stream's rate, so they alternate with one.
//   - Lines must arrive before the reader. Rows that a mask keeps are known one block before they are read,
//   so
//     either sort may be the more urgent one.
//   - Lines must not be far ahead. A fetched line stays for about 150 KiB of others: 400 KiB ahead costs a
//     third of the bandwidth.
//   - The rows read next are fetched next. Fetching the scales of 64 rows before their codes, because
//     coefficients are rounded with all of them, cost a tenth.
//
// Thread safety: each object belongs to one thread.
#pragma once

#include <algorithm>
#include <cstdint>

namespace sluice::cpu {

// The i-th of `rows` consecutive rows that are read in turn from both halves: a core reads two streams that
// lie apart a tenth faster than one, or than neighbours (Granite Rapids).
inline uint32_t InHalves(uint32_t i, uint32_t rows) { return i / 2 + (i % 2 != 0 ? (rows + 1) / 2 : 0); }

// Fetches a line; tests record it instead. Always inlined: GCC takes a function that only prefetches for one
// without effect, and drops its calls.
struct FetchLine {
  __attribute__((always_inline)) static void At(const uint8_t* line) { __builtin_prefetch(line, 0, 2); }
};

// Lines at two addresses that are fetched in turn, evenly over a number of steps.
template <class Line>
class BasicLinesAhead {
 public:
  BasicLinesAhead() = default;  // fetches nothing

  // Starts `lines` at each address. REQUIRES steps > 0, and at most `steps` calls of Step().
  void Start(const uint8_t* a, const uint8_t* b, uint32_t lines, uint32_t steps) {
    places_[0] = a;
    places_[1] = b;
    at_ = 0;
    rate_ = lines * 64 / steps;
    due_ = lines * 64 - rate_ * steps;
  }

  // kOutOfLine: the fetching code is kept out of line. Weighted sums of q8 and q4 by panels gain a tenth by
  // it, everything else loses (GCC 12, Granite Rapids).
  template <bool kOutOfLine = false>
  __attribute__((always_inline)) void Step() {
    due_ += rate_;
    while (__builtin_expect(at_ < due_, kOutOfLine ? 0 : 1)) {
      Line::At(places_[0] + at_);
      Line::At(places_[1] + at_);
      at_ += 64;
    }
  }

 private:
  const uint8_t* places_[2] = {};
  uint32_t at_ = 0;
  uint32_t due_ = 0;
  uint32_t rate_ = 0;  // bytes of each address in a step
};
using LinesAhead = BasicLinesAhead<FetchLine>;

// Layout of rows: a stream, or scattered.
enum class RowSort : uint8_t { kStream, kGathered };

// The ranges that will be read, and their fetch distance. The ranges that the reader needs first are fetched
// first: see Reads().
template <class Line>
class BasicRowFetch {
 public:
  // Forgets everything. `distance`: bytes fetched ahead of the reader.
  void Clear(uint32_t distance) {
    distance_ = distance / 64;
    ahead_ = done_ = piece_.lines = 0;
    for (Ranges& ranges : ranges_) {
      ranges.Clear();
    }
    read_[0] = read_[1] = 0;
    Reads(RowSort::kStream, UINT32_MAX / 2);
  }

  // Changes the fetch distance in bytes. Lines fetched farther ahead stay.
  void SetDistance(uint32_t distance) { distance_ = distance / 64; }
  // Bytes of gathered rows that are still to be fetched.
  uint32_t gathered_bytes() const { return Of(RowSort::kGathered).lines() * 64; }

  // Lines of a sort that were added since Clear().
  uint32_t added(RowSort sort) const { return Of(sort).added(); }

  // Corrects the read count of a sort: exactly the lines added before added() was `end` have been read.
  // Readers' counts are rounded: without this, 1 % missing in every block adds up to the whole distance, and
  // lines are fetched that have been read already.
  void SetRead(RowSort sort, uint32_t end) {
    EndRead();
    read_[Index(sort)] = end;
    Of(sort).DropBefore(end);
    ahead_ = Ahead(RowSort::kStream) + Ahead(RowSort::kGathered);
  }

  uint32_t distance() const { return distance_ * 64; }

  // Adds bytes [begin, end), begin < end: of a stream, or of scattered rows. Each sort is fetched in this
  // order, both in turn. Ranges beyond the room are not fetched.
  void AddStream(const uint8_t* begin, const uint8_t* end) { Of(RowSort::kStream).Add(begin, end); }
  void AddGathered(const uint8_t* begin, const uint8_t* end) { Of(RowSort::kGathered).Add(begin, end); }

  // Adds `bytes` at each of two addresses, as two streams that are fetched in turn. The second has as many
  // lines as the first.
  void AddStreams(const uint8_t* a, const uint8_t* b, uint64_t bytes) {
    Of(RowSort::kStream).AddTwo(a, b, bytes);
  }

  // Announces that the next `lines` read are of this sort, followed by the other sort; initially all are of
  // the stream. Lines near the reader are fetched alone: otherwise the sort with more reads falls behind.
  // `in_any_order`: number of lines of the current or next gathered rows that are not read in the order in
  // which they were added, so they are needed at once.
  void Reads(RowSort sort, uint32_t lines, uint32_t in_any_order = 0) {
    EndRead();
    reading_ = sort;
    lines_ = lines;
    near_[Index(RowSort::kGathered)] = kNear + in_any_order;
  }

  // Sets `out` to the lines to fetch while `lines` of the added ones are read in `steps` steps. A sort behind
  // its distance catches up at one and a half times the reader's pace.
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

  // Fetches as many lines as for reading `lines`, all at once, before anything is read.
  void Advance(uint32_t lines) {
    uint32_t wanted = Wanted(lines);
    while (wanted > 1 && (piece_.lines > 0 || NextPiece())) {
      const uint32_t n = std::min(wanted / 2, piece_.lines);
      FetchNow(n);
      wanted -= 2 * n;
    }
  }

 private:
  // Lines at each address. With half as many, weighted sums and experts of q8 and q4 lost 1 to 3 % of the
  // bandwidth; twice as many gained nothing (Granite Rapids).
  static constexpr uint32_t kPieceLines = 128;
  static constexpr uint32_t kRowLines = 128;  // maximum length of rows that are fetched as a pair

  struct Range {
    const uint8_t* at = nullptr;
    uint32_t lines = 0;
    const uint8_t* other = nullptr;  // the second of two streams, with as many lines

    uint32_t streams() const { return other != nullptr ? 2 : 1; }
    // Takes the first n lines.
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

    // Takes the first n lines of range i.
    const uint8_t* Take(uint32_t i, uint32_t n) {
      lines_ -= n * Nth(i).streams();
      return Nth(i).Take(n);
    }

    // Drops the lines that were added before line `end`.
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
      if (count_ < kMaxRanges) {
        const uint32_t lines = static_cast<uint32_t>(last - first + 1);
        Nth(count_++) = {reinterpret_cast<const uint8_t*>(first * 64), lines};
        Count(lines);
      }
    }

    void AddTwo(const uint8_t* a, const uint8_t* b, uint64_t bytes) {
      if (count_ < kMaxRanges) {
        const uintptr_t first = reinterpret_cast<uintptr_t>(a) / 64;
        const uintptr_t last = (reinterpret_cast<uintptr_t>(a) + bytes - 1) / 64;
        const uintptr_t other = reinterpret_cast<uintptr_t>(b) / 64;
        const uint32_t lines = static_cast<uint32_t>(last + 1 - first);
        Nth(count_++) = {reinterpret_cast<const uint8_t*>(first * 64), lines,
                         reinterpret_cast<const uint8_t*>(other * 64)};
        Count(2 * lines);
      }
    }

    // True if the first two ranges are neighbouring rows: equal length, not long.
    bool StartsWithPair() {
      return count_ > 1 && Nth(0).lines == Nth(1).lines && Nth(0).lines <= kRowLines &&
             Nth(1).other == nullptr;
    }

    // Drops the first ranges that are used up.
    void DropEmpty() {
      while (count_ > 0 && Nth(0).lines == 0) {
        first_ = (first_ + 1) % kMaxRanges;
        --count_;
      }
    }

   private:
    static constexpr uint32_t kMaxRanges = 512;

    Range& Nth(uint32_t i) { return ranges_[(first_ + i) % kMaxRanges]; }
    void Count(uint32_t lines) {
      lines_ += lines;
      added_ += lines;
    }

    Range ranges_[kMaxRanges];
    uint32_t first_ = 0;
    uint32_t count_ = 0;
    uint32_t lines_ = 0;  // lines of all ranges
    uint32_t added_ = 0;
  };

  // Two addresses that are fetched in turn.
  struct Piece {
    const uint8_t* at[2] = {};
    RowSort sorts[2] = {};
    uint32_t lines = 0;  // lines at each

    uint32_t LinesOf(RowSort sort) const {
      return (sorts[0] == sort ? lines : 0) + (sorts[1] == sort ? lines : 0);
    }
  };

  // Lines: a sort whose unfetched lines are this near to the reader is fetched alone. Half or twice as much
  // made no difference at one token (Granite Rapids).
  static constexpr uint32_t kNear = 256;

  static constexpr uint32_t Index(RowSort sort) { return static_cast<uint32_t>(sort); }
  static constexpr RowSort Other(RowSort sort) {
    return sort == RowSort::kStream ? RowSort::kGathered : RowSort::kStream;
  }

  // Lines of a sort that were fetched and not yet read, without those that are read now.
  uint32_t Ahead(RowSort sort) const {
    const uint32_t taken = Of(sort).taken();
    return taken - std::min(taken, read_[Index(sort)] + piece_.LinesOf(sort));
  }

  // Counts the lines that are read now as read.
  void EndRead() {
    read_[Index(reading_)] += done_;
    done_ = 0;
  }

  uint32_t Wanted(uint32_t lines) const {
    return std::min(distance_ - std::min(distance_, ahead_), lines + lines / 2);
  }

  // Returns true and the sort if the next lines are of one sort alone; false: both in turn.
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

  // Makes the next piece: two streams, the stream and a gathered row, two neighbouring rows, or two halves of
  // the next range. False if there is none.
  __attribute__((noinline)) bool NextPiece() {
    Of(reading_).DropBefore(read_[Index(reading_)] + done_);  // too late to fetch these
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
  uint32_t ahead_ = 0;  // fetched lines that are not yet read
  uint32_t distance_ = 0;
  RowSort reading_ = RowSort::kStream;
  uint32_t lines_ = 0;     // lines that are read before one of the other sort
  uint32_t done_ = 0;      // of `lines_`, those that have been read
  uint32_t read_[2] = {};  // lines of each sort read before these, since Clear()
  uint32_t near_[2] = {kNear, kNear};
};
using RowFetch = BasicRowFetch<FetchLine>;

}  // namespace sluice::cpu
