// Rows that will be read soon: fetched into the second-level cache a few lines at a time while others are
// computed. All at once they would hold up the loads of what is being computed.
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
    rows_[count_++] = {begin, static_cast<uint32_t>(last - first + 1)};
    lines_ += static_cast<uint32_t>(last - first + 1);
  }

  // Lines that are left.
  uint32_t lines() const { return lines_; }

  // Fetches the next lines, in the order of Add(); returns how many of the `lines` were there.
  uint32_t Advance(uint32_t lines) {
    const uint32_t wanted = std::min(lines, lines_);
    for (uint32_t left = wanted; left > 0;) {
      Row& row = rows_[next_];
      const uint32_t n = std::min(left, row.lines);
      for (uint32_t i = 0; i < n; ++i) {
        __builtin_prefetch(row.at + uint64_t{i} * 64, 0, 2);
      }
      row.at += uint64_t{n} * 64;
      row.lines -= n;
      left -= n;
      next_ += row.lines == 0 ? 1 : 0;
    }
    lines_ -= wanted;
    return wanted;
  }

 private:
  struct Row {
    const uint8_t* at;
    uint32_t lines;
  };

  Row rows_[kMostRows];
  uint32_t next_ = 0;
  uint32_t count_ = 0;
  uint32_t lines_ = 0;
};

}  // namespace sluice::host

#endif  // SLUICE_KERNELS_HOST_ROW_FETCH_H_
