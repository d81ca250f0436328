// Seeing that a read's bytes have come before the kernel says so. Some disks, virtual ones above all, serve
// their queue in order and report nothing before it is empty: of 8 MiB the first lies in memory for 2 to 3 ms
// before anybody hears of it (docs/benchmarks.md). Marks in that memory tell when it pays to look at its
// checksum, which alone decides whether the bytes are there.
//
// Thread safety: ArrivalMarks is immutable; LookTimes is thread-compatible.
#ifndef SLUICE_WEIGHTD_ARRIVAL_MARKS_H_
#define SLUICE_WEIGHTD_ARRIVAL_MARKS_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice {

// One word at the end of every page that a read will fill. With one in every page, old bytes that happen to
// be the right ones (an extent that comes back to its place) cannot pass for new ones.
class ArrivalMarks {
 public:
  // The word is drawn anew for every process: a pack cannot contain it but by chance, and then its reads are
  // only taken as reported.
  ArrivalMarks();

  // REQUIRES, as Gone(): `dest` is page-aligned and a multiple of 4096 bytes.
  void Plant(std::span<std::byte> dest) const;
  // Whether something has come to every page of `dest`.
  bool Gone(std::span<const std::byte> dest) const;

 private:
  const uint64_t mark_;
};

// When to look, and for which reads it pays: a disk that reports each read as it ends gives nothing to see.
// When 256 looked-for reads in a row have brought nothing, only one of 64 is looked for. Times in
// nanoseconds.
class LookTimes {
 public:
  // Whether to look for the read that starts now.
  bool Pays();
  // Reads start on a disk that had nothing to do.
  void OnBurst(int64_t now);
  // A look found `arrived` reads there.
  void OnLook(int64_t now, int arrived);
  // The kernel reported a looked-for read, whose bytes had been seen `nanos` before; 0: they had not.
  void OnReport(int64_t nanos);

  // The time from the last look to the next: most of what the last arrivals took each, then short ones.
  int64_t pause() const { return pause_; }

 private:
  static constexpr int kReads = 256;
  static constexpr int kOneOf = 64;
  static constexpr int64_t kGain = 100'000;  // less is not worth the looks
  static constexpr int64_t kShortest = 100'000;
  static constexpr int64_t kLongest = 2'000'000;

  int without_gain_ = 0;  // looked-for reads
  int not_looked_for_ = 0;
  int64_t last_arrival_ = 0;
  int64_t arrival_takes_ = 0;  // smoothed
  int64_t pause_ = kShortest;
};

}  // namespace sluice

#endif  // SLUICE_WEIGHTD_ARRIVAL_MARKS_H_
