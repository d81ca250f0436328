#include "cli/measure/speed/read_base.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/size.h"
#include "common/status.h"
#include "kernels/host/read_bandwidth.h"

namespace sluice {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{4} << 30;
// Beyond the caches of any CPU with a few cores.
constexpr uint64_t kLeastBytes = uint64_t{256} << 20;
constexpr uint64_t kHugePage = uint64_t{2} << 20;

}  // namespace

ReadBaseSize SizeOfReadBase(uint64_t pack_bytes, uint64_t usable_bytes) {
  const uint64_t wanted = std::max(std::min(pack_bytes, kMaxBytes) / kHugePage, uint64_t{1}) * kHugePage;
  const uint64_t bytes = std::min(wanted, usable_bytes / 2 / kHugePage * kHugePage);
  if (bytes == wanted) {
    return {bytes, ""};
  }
  const std::string free = absl::StrCat(FormatSize(usable_bytes), " are free for this process");
  if (bytes < std::min(wanted, kLeastBytes)) {
    return {0,
            absl::StrCat("the read bandwidth is not measured: ", free, ", and half of them is less than the ",
                         FormatSize(std::min(wanted, kLeastBytes)), " that it takes")};
  }
  return {bytes, absl::StrCat("the read bandwidth is measured over ", FormatSize(bytes), ", not ",
                              FormatSize(wanted), ": ", free)};
}

absl::StatusOr<double> MeasureReadBase(uint64_t bytes, uint32_t threads) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return ErrnoToStatus(errno, absl::StrCat("read bandwidth: mapping ", bytes, " bytes"));
  }
  const absl::Cleanup unmap = [memory, bytes] { munmap(memory, bytes); };
  madvise(memory, bytes, MADV_HUGEPAGE);  // only a wish: small pages give a lower base
  std::memset(memory, 1, bytes);          // pages that were never written all read the one zero page
  ReadBandwidthOptions options;
  options.threads = threads;
  const absl::Span<const std::byte> region(static_cast<const std::byte*>(memory), bytes);
  ASSIGN_OR_RETURN(const ReadBandwidth measured,
                   MeasureReadBandwidth(absl::MakeConstSpan(&region, 1), options));
  return measured.best;
}

}  // namespace sluice
