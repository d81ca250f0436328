#include "tests/cuda_fake/device/peer_order.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"

namespace sluice::cuda_fake {
namespace {

constexpr uint64_t kMagic = 0x6b61662061647563;
constexpr uint64_t kPage = 4096;
constexpr uint32_t kWordBytes = 4;
// Number of a side's operations that are told apart. An overwritten entry's operation was done long ago.
constexpr uint32_t kOperations = 1 << 14;
constexpr size_t kNameBytes = 104;

uint64_t Pages(uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// At the file's end.
struct Tail {
  uint64_t magic = 0;
  uint64_t data_bytes = 0;
};
static_assert(sizeof(Tail) <= kPage);

Tail TailOf(int fd) {
  struct stat about {};
  Tail tail;
  if (fstat(fd, &about) != 0 || about.st_size < static_cast<off_t>(kPage) ||
      pread(fd, &tail, sizeof(tail), about.st_size - static_cast<off_t>(kPage)) !=
          static_cast<ssize_t>(sizeof(tail)) ||
      tail.magic != kMagic) {
    return {};
  }
  return tail;
}

// True if a process can still have work in flight: a killed process that is not yet reaped has none.
bool Lives(int pid) {
  std::FILE* const file = std::fopen(absl::StrCat("/proc/", pid, "/stat").c_str(), "r");
  if (file == nullptr) {
    return false;
  }
  char state = 'X';
  const bool read = std::fscanf(file, "%*d (%*[^)]) %c", &state) == 1;
  std::fclose(file);
  return read && state != 'Z' && state != 'X';
}

}  // namespace

// Zeros are a word that nobody has touched, and a side that nobody has taken.
struct PeerOrder::Word {
  std::atomic<uint32_t> reader[2];
  std::atomic<uint32_t> writer[2];
};
struct PeerOrder::Side {
  struct Entry {
    std::atomic<uint32_t> number;  // from 1 on
    std::atomic<int64_t> known;    // when the host learnt that it was done; 0: it has not
    char name[kNameBytes];
  };
  std::atomic<int32_t> pid;
  std::atomic<int32_t> open;  // how often that process has the file
  std::atomic<uint32_t> last;
  Entry entries[kOperations];
};
struct PeerOrder::Trailer {
  Side sides[2];  // the maker's, the importer's
  uint64_t data_bytes;

  static uint64_t Bytes(uint64_t data_bytes) {
    return Pages(sizeof(Trailer)) + Pages(data_bytes / kWordBytes * sizeof(Word)) + kPage;
  }
  Word* words() { return reinterpret_cast<Word*>(reinterpret_cast<uint8_t*>(this) + Pages(sizeof(Trailer))); }
};

bool PeerOrder::Resize(int fd, uint64_t data_bytes) {
  const uint64_t end = data_bytes + Trailer::Bytes(data_bytes);
  const Tail tail{kMagic, data_bytes};
  return ftruncate(fd, static_cast<off_t>(end)) == 0 &&
         pwrite(fd, &tail, sizeof(tail), static_cast<off_t>(end - kPage)) ==
             static_cast<ssize_t>(sizeof(tail));
}

uint64_t PeerOrder::DataBytes(int fd) {
  struct stat about {};
  const Tail tail = TailOf(fd);
  return tail.magic == kMagic     ? tail.data_bytes
         : fstat(fd, &about) == 0 ? static_cast<uint64_t>(about.st_size)
                                  : 0;
}

std::unique_ptr<PeerOrder> PeerOrder::Open(int fd, int side, const Operations* operations,
                                           ReportSink* reports) {
  const Tail tail = TailOf(fd);
  if (tail.magic != kMagic) {
    return nullptr;
  }
  const uint64_t bytes = Trailer::Bytes(tail.data_bytes);
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(tail.data_bytes));
  if (memory == MAP_FAILED) {
    return nullptr;
  }
  return std::unique_ptr<PeerOrder>(
      new PeerOrder(static_cast<Trailer*>(memory), bytes, side, operations, reports));
}

std::unique_ptr<PeerOrder> PeerOrder::Make(int fd, const Operations* operations, ReportSink* reports) {
  std::unique_ptr<PeerOrder> order = Open(fd, 0, operations, reports);
  if (order != nullptr) {
    order->own_->pid = getpid();
    order->own_->open = 1;
    order->counted_ = true;
  }
  return order;
}

std::unique_ptr<PeerOrder> PeerOrder::Import(int fd, const Operations* operations, ReportSink* reports) {
  std::unique_ptr<PeerOrder> order = Open(fd, 1, operations, reports);
  if (order == nullptr || order->peer_->pid == getpid()) {
    return nullptr;
  }
  // The importer before this one is gone, and its work with it.
  if (const int before = order->own_->pid.exchange(getpid()); before != 0 && before != getpid()) {
    for (Side::Entry& entry : order->own_->entries) {
      int64_t never = 0;
      if (entry.number != 0) {
        entry.known.compare_exchange_strong(never, 1);
      }
    }
    order->own_->open = 0;
  }
  ++order->own_->open;
  order->counted_ = true;
  return order;
}

PeerOrder::PeerOrder(Trailer* trailer, uint64_t bytes, int side, const Operations* operations,
                     ReportSink* reports)
    : trailer_(trailer),
      bytes_(bytes),
      side_(side),
      own_(&trailer->sides[side]),
      peer_(&trailer->sides[1 - side]),
      words_(trailer->words()),
      operations_(operations),
      reports_(reports) {}

PeerOrder::~PeerOrder() {
  Forget();
  own_->open -= counted_ && own_->pid == getpid() ? 1 : 0;  // a forked copy has counted nothing
  munmap(trailer_, bytes_);
}

int PeerOrder::OpenElsewhere() const {
  const int pid = peer_->pid;
  return pid != 0 && peer_->open > 0 && Lives(pid) ? pid : 0;
}

void PeerOrder::HostHasLearnt() {
  const int64_t now = Operations::Now();
  std::erase_if(open_, [&](const auto& open) {
    if (!operations_->IsKnown(open.first)) {
      return false;
    }
    own_->entries[open.second % kOperations].known = now;
    return true;
  });
}

void PeerOrder::Forget() {
  for (const auto& [operation, number] : open_) {
    own_->entries[number % kOperations].known = Operations::Now();
  }
  open_.clear();
}

uint32_t PeerOrder::NumberOf(uint32_t operation) {
  if (operation == last_operation_) {
    return last_number_;
  }
  const auto [it, is_new] = open_.try_emplace(operation, 0);
  if (is_new) {
    it->second = ++own_->last;
    Side::Entry& entry = own_->entries[it->second % kOperations];
    entry.number = 0;
    entry.known = 0;
    std::snprintf(entry.name, sizeof(entry.name), "%s", operations_->NameOf(operation).c_str());
    entry.number = it->second;
  }
  last_operation_ = operation;
  return last_number_ = it->second;
}

// Enters the access first and looks at the other side's behind that, so that of two processes which do this
// at once one at least sees the other.
void PeerOrder::Access(uint32_t operation, uint64_t offset, uint64_t bytes, bool writes) {
  const uint32_t number = NumberOf(operation);
  Word* const begin = words_ + offset / kWordBytes;
  Word* const end = words_ + (offset + bytes + kWordBytes - 1) / kWordBytes;
  bool entered = true;
  for (Word* word = begin; word < end && entered; ++word) {
    entered = (writes ? word->writer : word->reader)[side_].load(std::memory_order_relaxed) == number;
  }
  if (entered) {
    return;
  }
  for (Word* word = begin; word < end; ++word) {
    (writes ? word->writer : word->reader)[side_].store(number, std::memory_order_relaxed);
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  uint32_t checked_writer = 0;
  uint32_t checked_reader = 0;
  for (Word* word = begin; word < end; ++word) {
    const auto at = static_cast<uint64_t>(word - words_) * kWordBytes;
    const uint32_t writer = word->writer[1 - side_].load(std::memory_order_relaxed);
    if (writer != checked_writer && writer != 0) {
      Check(checked_writer = writer, true, operation, at, writes);
    }
    const uint32_t reader = writes ? word->reader[1 - side_].load(std::memory_order_relaxed) : 0;
    if (reader != checked_reader && reader != 0) {
      Check(checked_reader = reader, false, operation, at, writes);
    }
  }
}

void PeerOrder::Check(uint32_t other, bool other_wrote, uint32_t operation, uint64_t offset, bool writes) {
  const Side::Entry& entry = peer_->entries[other % kOperations];
  const std::string name(entry.name, strnlen(entry.name, sizeof(entry.name)));
  if (entry.number != other) {
    return;
  }
  const int64_t known = entry.known;
  if (known == 0 ? !Lives(peer_->pid) : known <= operations_->SubmittedAt(operation)) {
    return;
  }
  const std::string own = operations_->NameOf(operation);
  reports_->Add(
      Finding::kPeers, absl::StrCat(own, "|", name),
      absl::StrCat(own, writes ? " writes" : " reads", " byte ", offset, " of memory shared with process ",
                   peer_->pid.load(), ", whose ", name, other_wrote ? " wrote" : " read",
                   " it and was not known to be done ", known == 0 ? "yet" : "when this was submitted"));
}

}  // namespace sluice::cuda_fake
