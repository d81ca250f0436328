// Rows that will be read soon: fetched into the second-level cache a few lines at a time while others are
// computed. All at once they would hold up the loads of what is being computed. Lines of four rows are
// fetched in turn: one row after the other has fewer under way.
//
// Thread safety: each belongs to one thread.
#ifndef SLUICE_KERNELS_HOST_ROW_FETCH_H_
#define SLUICE_KERNELS_HOST_ROW_FETCH_H_

#include <algorithm>
#include <cstdint>

namespace sluice::host {

class RowFetch {
 public:
  static constexpr uint32_t kMostRows = 128;

  void Clear() { next_ = count_ = lines_ = 0; }

  // Bytes [begin, end), begin < end. REQUIRES fewer than kMostRows calls since Clear().
  void Add(const uint8_t* begin, const uint8_t* end) {
    const uintptr_t first = reinterpret_cast<uintptr_t>(begin) / 64;
    const uintptr_t last = (reinterpret_cast<uintptr_t>(end) - 1) / 64;
    const uint32_t lines = static_cast<uint32_t>(last - first + 1);
    rows_[count_++] = {begin, lines};
    lines_ += lines;
  }

  // Lines that are left.
  uint32_t lines() const { return lines_; }

  // Fetches the next lines, in the order of Add() but for four rows in turn: `lines` and up to three more.
  void Advance(uint32_t lines) {
    for (uint32_t left = std::min(lines, lines_); left > 0;) {
      const uint32_t side = Side();
      const uint32_t n = std::min((left + side - 1) / side, rows_[next_].lines);
      side == 4 ? Fetch<4>(n) : Fetch<1>(n);
      lines_ -= n * side;
      left -= std::min(left, n * side);
      next_ += rows_[next_].lines == 0 ? side : 0;
    }
  }

 private:
  struct Row {
    const uint8_t* at;
    uint32_t lines;
  };

  // 4 if the next four rows have as many lines left, else 1.
  uint32_t Side() const {
    const Row* r = rows_ + next_;
    const bool four = next_ + 4 <= count_ && r[1].lines == r[0].lines && r[2].lines == r[0].lines &&
                      r[3].lines == r[0].lines;
    return four ? 4 : 1;
  }

  // n lines of each of the next kRows rows.
  template <int kRows>
  void Fetch(uint32_t n) {
    const uint8_t* at[kRows];
    for (int r = 0; r < kRows; ++r) {
      at[r] = rows_[next_ + r].at;
      rows_[next_ + r].at += uint64_t{n} * 64;
      rows_[next_ + r].lines -= n;
    }
    for (uint64_t i = 0; i < uint64_t{n} * 64; i += 64) {
      for (int r = 0; r < kRows; ++r) {
        __builtin_prefetch(at[r] + i, 0, 2);
      }
    }
  }

  Row rows_[kMostRows];
  uint32_t next_ = 0;
  uint32_t count_ = 0;
  uint32_t lines_ = 0;
};

}  // namespace sluice::host

#endif  // SLUICE_KERNELS_HOST_ROW_FETCH_H_
