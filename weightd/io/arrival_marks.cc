#include "weightd/io/arrival_marks.h"

#include <algorithm>
#include <atomic>
#include <random>

namespace sluice {
namespace {

constexpr size_t kPage = 4096;

// The last word of a page; the device writes it behind the compiler's back.
std::atomic_ref<uint64_t> WordOf(const std::byte* page) {
  return std::atomic_ref(
      *reinterpret_cast<uint64_t*>(const_cast<std::byte*>(page) + kPage - sizeof(uint64_t)));
}

}  // namespace

ArrivalMarks::ArrivalMarks() : mark_(uint64_t{std::random_device()()} << 32 | std::random_device()()) {}

void ArrivalMarks::Plant(std::span<std::byte> dest) const {
  for (size_t at = 0; at < dest.size(); at += kPage) {
    WordOf(dest.data() + at).store(mark_, std::memory_order_relaxed);
  }
}

bool ArrivalMarks::Gone(std::span<const std::byte> dest) const {
  // Bytes mostly come in order, so the last page is looked at first.
  for (size_t end = dest.size(); end != 0; end -= kPage) {
    if (WordOf(dest.data() + end - kPage).load(std::memory_order_acquire) == mark_) {
      return false;
    }
  }
  return true;
}

bool LookTimes::Pays() {
  if (without_gain_ >= kReads && ++not_looked_for_ < kOneOf) {
    return false;
  }
  not_looked_for_ = 0;
  return true;
}

void LookTimes::OnBurst(int64_t now) {
  last_arrival_ = now;
  pause_ = std::clamp(arrival_takes_ * 3 / 4, kShortest, kLongest);
}

void LookTimes::OnLook(int64_t now, int arrived) {
  if (arrived == 0) {
    pause_ = kShortest;
    return;
  }
  arrival_takes_ += ((now - last_arrival_) / arrived - arrival_takes_) / 4;
  last_arrival_ = now;
  pause_ = std::clamp(arrival_takes_ * 3 / 4, kShortest, kLongest);
}

void LookTimes::OnReport(int64_t nanos) {
  without_gain_ = nanos >= kGain ? 0 : std::min(without_gain_ + 1, kReads);
}

}  // namespace sluice
