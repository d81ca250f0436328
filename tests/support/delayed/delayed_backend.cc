#include "tests/support/delayed/delayed_backend.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/status.h"
#include "kernels/owned_operation.h"
#include "pack/row_layout.h"

namespace sluice {

void DelayedMemory::Add(BufferId buffer, std::byte* device, uint64_t bytes, Kind kind) {
  if (buffers_.size() < buffer) {
    buffers_.resize(buffer);
  }
  Buffer& added = buffers_[buffer - 1];
  added.device = device;
  added.bytes = bytes;
  added.kind = kind;
  if (kind == Kind::kStaging) {
    added.host = std::make_unique<std::byte[]>(bytes);
  }
}

std::vector<Access> DelayedMemory::TakeAccesses() { return std::exchange(noted_accesses_, {}); }

const DelayedMemory::Buffer* DelayedMemory::Find(BufferRef ref, uint64_t bytes) const {
  if (!Lives(ref.buffer)) {
    return nullptr;
  }
  const Buffer& buffer = buffers_[ref.buffer - 1];
  return ref.offset <= buffer.bytes && bytes <= buffer.bytes - ref.offset ? &buffer : nullptr;
}

std::byte* DelayedMemory::Host(BufferRef ref, uint64_t bytes) const {
  const Buffer* buffer = Find(ref, bytes);
  return buffer == nullptr || buffer->host == nullptr ? nullptr : buffer->host.get() + ref.offset;
}

const std::byte* DelayedMemory::Read(BufferRef ref, uint64_t bytes) const {
  const Buffer* buffer = Find(ref, bytes);
  if (buffer == nullptr) {
    return nullptr;
  }
  noted_accesses_.push_back({ref.buffer, ref.offset, ref.offset + bytes, false});
  return buffer->device + ref.offset;
}

std::byte* DelayedMemory::Write(BufferRef ref, uint64_t bytes) const {
  const Buffer* buffer = Find(ref, bytes);
  if (buffer == nullptr || buffer->kind == Kind::kOthers) {
    return nullptr;
  }
  noted_accesses_.push_back({ref.buffer, ref.offset, ref.offset + bytes, true});
  return buffer->device + ref.offset;
}

absl::Status DelayedMemory::Explain(BufferRef ref, uint64_t bytes, bool writing, const char* what) const {
  if (!Lives(ref.buffer)) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": buffer ", ref.buffer, " does not live"));
  }
  if (Find(ref, bytes) == nullptr) {
    return absl::OutOfRangeError(absl::StrCat(what, ": bytes ", ref.offset, " + ", bytes, " in buffer ",
                                              ref.buffer, " of ", buffers_[ref.buffer - 1].bytes, " bytes"));
  }
  return writing ? absl::FailedPreconditionError(absl::StrCat(what, ": buffer ", ref.buffer, " is read-only"))
                 : absl::InternalError(absl::StrCat(what, ": buffer ", ref.buffer, " is accessible"));
}

namespace {

constexpr int kPoison = 0xa5;

Digest128 SumOf(const std::byte* begin, uint64_t bytes) {
  return DigestOf(absl::Span<const std::byte>(begin, bytes));
}

// Adds the rows of an expert's part that a call may read: those of its present neurons. Other rows of the
// same matrix may be arriving meanwhile. A gate that the model does not have is not read.
void AddRows(const WeightView& part, uint32_t begin, uint32_t end, std::vector<Access>* accesses) {
  if (!part.base) {
    return;
  }
  const uint64_t bytes = RowBytes(part.encoding, part.cols);
  for (uint32_t j = begin; j < end; ++j) {
    const int64_t row = part.positions.empty() ? int64_t{j} : part.positions[j];
    if (row >= 0) {
      const uint64_t offset = part.base.offset + static_cast<uint64_t>(row) * part.stride;
      accesses->push_back({part.base.buffer, offset, offset + bytes, false});
    }
  }
}

// Adds the weights that experts read, row by row.
template <class Args>
void AddWeights(const Args& args, std::vector<Access>* accesses) {
  if constexpr (std::is_same_v<Args, MoeExpertsArgs> || std::is_same_v<Args, RoutedExpertsArgs>) {
    for (const ExpertWork& work : args.experts) {
      const uint32_t end = work.neuron_end == 0 ? work.up.rows : work.neuron_end;
      const bool led = bool{work.lead_values.base};
      if (!led || work.sparsity != SparsityOrder::kUp) {
        AddRows(work.up, work.neuron_begin, end, accesses);
      }
      if (!led || work.sparsity != SparsityOrder::kGate) {
        AddRows(work.gate, work.neuron_begin, end, accesses);
      }
      if (args.down_by_outputs) {
        AddRows(work.down, 0, work.down.rows, accesses);
      } else {
        AddRows(work.down, work.neuron_begin, end, accesses);
      }
    }
  }
}
template <class Args>
constexpr bool kReadsExperts =
    std::is_same_v<Args, MoeExpertsArgs> || std::is_same_v<Args, RoutedExpertsArgs>;

}  // namespace

struct DelayedBackend::Item {
  const char* name = "";
  std::function<absl::Status(Backend& inner, Item& item)> run;
  std::optional<OwnedOperation> operation;
  std::vector<Access> accesses;

  // Staging memory that the operation reads, as it was on the host when it was enqueued; `host`: the host's
  // address.
  struct HostBytes {
    std::byte* device = nullptr;
    const std::byte* host = nullptr;  // nullptr: the host may write there, since a later operation will
    std::vector<std::byte> bytes;
  };
  std::vector<HostBytes> host_bytes;
  // Checksum of memory that others can write.
  struct Sum {
    const std::byte* place = nullptr;
    uint64_t bytes = 0;
    Digest128 digest;
  };
  std::vector<Sum> sums;

  std::vector<std::byte> data;  // of Upload and Download
  void* destination = nullptr;  // of Download
};

DelayedBackend::DelayedBackend(std::unique_ptr<Backend> inner, const BackendLimits& limits,
                               const DelayOptions& options)
    : inner_(std::move(inner)),
      limits_(limits),
      options_(options),
      scratch_(limits),
      random_(options.seed),
      thread_([this] { Run(); }) {}

DelayedBackend::~DelayedBackend() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

// The device's thread.

void DelayedBackend::Run() {
  for (;;) {
    std::shared_ptr<Item> item;
    {
      MutexLock lock(&mutex_);
      while (queue_.empty() && !stopping_) {
        changed_.Wait(&mutex_);
      }
      if (queue_.empty()) {
        return;
      }
      item = queue_.front();
      queue_.pop_front();
      AwaitTurn(*item, ran_ + 1);
    }
    const absl::Status status = RunItem(item.get());
    MutexLock lock(&mutex_);
    ++ran_;
    times_[ran_ % kTimedEvents] = clock_.NowNanos();
    if (error_.ok() && !status.ok()) {
      error_ = status;
    }
    changed_.SignalAll();
  }
}

void DelayedBackend::AwaitTurn(const Item& item, uint64_t index) {
  const uint64_t draw = random_() % 16;
  const bool held = options_.hold || draw == 0;
  if (!item.operation.has_value() || (draw > 4 && !held)) {
    return;
  }
  const uint64_t max_delay_us = held ? options_.max_hold_us : 1 + random_() % options_.max_delay_us;
  const int64_t until = clock_.NowNanos() + static_cast<int64_t>(max_delay_us) * 1000;
  while (!stopping_ && !(held && wanted_ >= index)) {
    const int64_t left = until - clock_.NowNanos();
    if (options_.hold) {
      changed_.Wait(&mutex_);
    } else if (left > 0) {
      changed_.WaitFor(&mutex_, std::chrono::nanoseconds(left));
    } else {
      return;
    }
  }
}

absl::Status DelayedBackend::RunItem(Item* item) {
  MutexLock lock(&inner_mutex_);
  const auto intact = [&](const char* when) -> absl::Status {
    for (const Item::Sum& sum : item->sums) {
      if (!(SumOf(sum.place, sum.bytes) == sum.digest)) {
        return absl::FailedPreconditionError(
            absl::StrCat(item->name, ": ", sum.bytes, " bytes of weights were overwritten ", when));
      }
    }
    return absl::OkStatus();
  };
  for (const Item::HostBytes& host : item->host_bytes) {
    if (host.host != nullptr && std::memcmp(host.host, host.bytes.data(), host.bytes.size()) != 0) {
      return absl::FailedPreconditionError(
          absl::StrCat(item->name, ": the host changed staging memory that it had yet to read"));
    }
    std::memcpy(host.device, host.bytes.data(), host.bytes.size());
  }
  RETURN_IF_ERROR(intact("before it ran"));
  RETURN_IF_ERROR(item->run(*inner_, *item));
  return intact("while it ran");
}

// Enqueueing, on the host's thread.

uint64_t DelayedBackend::Push(std::unique_ptr<Item> item) {
  CaptureHostBytes(item.get());
  Poison(*item);
  pending_.push_back(std::move(item));
  MutexLock lock(&mutex_);
  queue_.push_back(pending_.back());
  changed_.SignalAll();
  return ++pushed_;
}

// Staging bytes that the host wrote go to the device with the first operation that reads them. Bytes that an
// operation writes there belong to the device until the host knows that it is done.
void DelayedBackend::CaptureHostBytes(Item* item) const {
  for (const Access& access : item->accesses) {
    const std::byte* host = memory_.Host(access);
    if (access.write || host == nullptr || IsWritten(access)) {
      continue;
    }
    const bool own = std::any_of(item->accesses.begin(), item->accesses.end(),
                                 [&](const Access& other) { return other.write && other.Overlaps(access); });
    item->host_bytes.push_back({memory_.Device(access), own ? nullptr : host,
                                std::vector<std::byte>(host, host + (access.end - access.begin))});
  }
}

void DelayedBackend::Poison(const Item& item) {
  for (const Access& access : item.accesses) {
    if (std::byte* host = memory_.Host(access); access.write && host != nullptr) {
      // Pending operations that read the host's bytes have their own copies.
      for (const std::shared_ptr<Item>& earlier : pending_) {
        for (Item::HostBytes& bytes : earlier->host_bytes) {
          if (bytes.host != nullptr && bytes.host < host + (access.end - access.begin) &&
              host < bytes.host + bytes.bytes.size()) {
            MutexLock lock(&inner_mutex_);
            bytes.host = nullptr;
          }
        }
      }
      std::memset(host, kPoison, access.end - access.begin);
    }
  }
  if (item.destination != nullptr) {
    std::memset(item.destination, kPoison, item.data.size());
  }
}

absl::Status DelayedBackend::Enqueue(const Operation& operation) {
  auto item = std::make_unique<Item>();
  memory_.TakeAccesses();
  RETURN_IF_ERROR(std::visit(
      [&](const auto* args) -> absl::Status {
        RETURN_IF_ERROR(Resolve(Resolver(memory_, limits_, scratch_, NameOf(*args)), *args).status());
        item->accesses = memory_.TakeAccesses();
        std::vector<Access> read = item->accesses;
        if constexpr (kReadsExperts<std::remove_cvref_t<decltype(*args)>>) {
          read.clear();
          AddWeights(*args, &read);
        }
        for (const Access& access : read) {
          if (!access.write && memory_.kind(access.buffer) == DelayedMemory::Kind::kOthers) {
            const std::byte* place = memory_.Device(access);
            const uint64_t bytes = access.end - access.begin;
            item->sums.push_back({place, bytes, SumOf(place, bytes)});
          }
        }
        return absl::OkStatus();
      },
      operation));
  item->operation.emplace(operation);
  item->name = item->operation->name();
  item->run = [](Backend& inner, Item& self) { return inner.queue().Enqueue(self.operation->get()); };
  Push(std::move(item));
  return absl::OkStatus();
}

absl::Status DelayedBackend::Upload(const void* source, uint64_t bytes, BufferRef destination) {
  memory_.TakeAccesses();
  if (memory_.Write(destination, bytes) == nullptr) {
    return memory_.Explain(destination, bytes, true, "upload");
  }
  auto item = std::make_unique<Item>();
  item->name = "Upload";
  item->accesses = memory_.TakeAccesses();
  item->data.assign(static_cast<const std::byte*>(source), static_cast<const std::byte*>(source) + bytes);
  item->run = [destination](Backend& inner, Item& self) {
    return inner.queue().Upload(self.data.data(), self.data.size(), destination);
  };
  Push(std::move(item));
  return absl::OkStatus();
}

absl::Status DelayedBackend::Download(BufferRef source, uint64_t bytes, void* destination) {
  memory_.TakeAccesses();
  if (memory_.Read(source, bytes) == nullptr) {
    return memory_.Explain(source, bytes, false, "download");
  }
  auto item = std::make_unique<Item>();
  item->name = "Download";
  item->accesses = memory_.TakeAccesses();
  item->data.resize(bytes);
  item->destination = destination;
  item->run = [source](Backend& inner, Item& self) {
    return inner.queue().Download(source, self.data.size(), self.data.data());
  };
  Push(std::move(item));
  return absl::OkStatus();
}

void DelayedBackend::BeginStep() {
  auto item = std::make_unique<Item>();
  item->name = "BeginStep";
  item->run = [](Backend& inner, Item&) {
    inner.BeginStep();
    return absl::OkStatus();
  };
  Push(std::move(item));
}

void DelayedBackend::EndStep() {
  auto item = std::make_unique<Item>();
  item->name = "EndStep";
  item->run = [](Backend& inner, Item&) {
    inner.EndStep();
    return absl::OkStatus();
  };
  Push(std::move(item));
}

Event DelayedBackend::Record() {
  auto item = std::make_unique<Item>();
  item->name = "Record";
  item->run = [](Backend&, Item&) { return absl::OkStatus(); };
  return {Push(std::move(item))};
}

// Events and waits, on the host's thread.

uint64_t DelayedBackend::Ran() {
  MutexLock lock(&mutex_);
  return ran_;
}

bool DelayedBackend::IsDone(Event event) {
  if (event.value > known_ && Ran() >= event.value) {
    MarkDone(event.value);
  }
  return event.value <= known_;
}

absl::Status DelayedBackend::Wait(Event event) {
  if (event.value > pushed_) {
    return absl::InvalidArgumentError(
        absl::StrCat("a wait for point ", event.value, " of ", pushed_, ": it was never recorded"));
  }
  if (event.value > known_) {
    waits_.fetch_add(1, std::memory_order_relaxed);
    {
      MutexLock lock(&mutex_);
      wanted_ = std::max(wanted_, event.value);
      changed_.SignalAll();
      while (ran_ < event.value) {
        changed_.Wait(&mutex_);
      }
    }
    MarkDone(event.value);
  }
  MutexLock lock(&mutex_);
  return error_;
}

absl::StatusOr<double> DelayedBackend::Seconds(Event from, Event to) {
  MutexLock lock(&mutex_);
  if (from.value == 0 || from.value > to.value || from.value + kTimedEvents <= ran_) {
    return absl::OutOfRangeError(absl::StrCat("no times of the points ", from.value, " and ", to.value,
                                              ": known are the last ", kTimedEvents, " of ", ran_));
  }
  if (to.value > ran_) {
    return absl::FailedPreconditionError(absl::StrCat("point ", to.value, " is not done"));
  }
  return static_cast<double>(times_[to.value % kTimedEvents] - times_[from.value % kTimedEvents]) * 1e-9;
}

void DelayedBackend::MarkDone(uint64_t index) {
  while (known_ < index) {
    const std::shared_ptr<Item> item = std::move(pending_.front());
    pending_.pop_front();
    ++known_;
    Publish(*item);
  }
}

// Makes the operation's writes visible to the host, unless a later operation writes there too.
void DelayedBackend::Publish(const Item& item) const {
  for (const Access& access : item.accesses) {
    std::byte* host = memory_.Lives(access.buffer) ? memory_.Host(access) : nullptr;
    if (access.write && host != nullptr && !IsWritten(access)) {
      std::memcpy(host, memory_.Device(access), access.end - access.begin);
    }
  }
  if (item.destination != nullptr) {
    std::memcpy(item.destination, item.data.data(), item.data.size());
  }
}

const DelayedBackend::Item* DelayedBackend::FindConflict(const Access& access, bool reads) const {
  for (const std::shared_ptr<Item>& item : pending_) {
    for (const Access& used : item->accesses) {
      if ((used.write || reads) && used.Overlaps(access)) {
        return item.get();
      }
    }
  }
  return nullptr;
}

void DelayedBackend::Fail(absl::Status status) {
  MutexLock lock(&mutex_);
  if (error_.ok()) {
    error_ = std::move(status);
  }
}

// Memory.

absl::StatusOr<BufferId> DelayedBackend::Allocate(uint64_t bytes, BufferKind kind) {
  MutexLock lock(&inner_mutex_);
  ASSIGN_OR_RETURN(const BufferId buffer, inner_->Allocate(bytes, kind));
  memory_.Add(buffer, inner_->HostWrite({buffer, 0}, bytes), bytes,
              kind == BufferKind::kStaging ? DelayedMemory::Kind::kStaging : DelayedMemory::Kind::kDevice);
  return buffer;
}

absl::StatusOr<SharedBuffer> DelayedBackend::AllocateShared(uint64_t bytes) {
  MutexLock lock(&inner_mutex_);
  ASSIGN_OR_RETURN(const SharedBuffer shared, inner_->AllocateShared(bytes));
  const std::byte* place = inner_->HostRead({shared.buffer, 0}, shared.bytes);
  memory_.Add(shared.buffer, const_cast<std::byte*>(place), shared.bytes, DelayedMemory::Kind::kOthers);
  return shared;
}

absl::StatusOr<BufferId> DelayedBackend::Import(absl::Span<const std::byte> memory) {
  MutexLock lock(&inner_mutex_);
  ASSIGN_OR_RETURN(const BufferId buffer, inner_->Import(memory));
  memory_.Add(buffer, const_cast<std::byte*>(memory.data()), memory.size(), DelayedMemory::Kind::kOthers);
  return buffer;
}

// A free that is too early is reported, but waits until nothing reads the memory, which may be unmapped next.
absl::Status DelayedBackend::Free(BufferId buffer) {
  if (!memory_.Lives(buffer)) {
    return absl::NotFoundError(absl::StrCat("buffer ", buffer, " does not live"));
  }
  absl::Status early;
  if (const Item* item = FindConflict({buffer, 0, UINT64_MAX}, /*reads=*/true); item != nullptr) {
    early = absl::FailedPreconditionError(
        absl::StrCat(item->name, ": buffer ", buffer, " was freed before it is known to have run"));
    Fail(early);
    Drain();
  }
  memory_.Remove(buffer);
  MutexLock lock(&inner_mutex_);
  const absl::Status freed = inner_->Free(buffer);
  return early.ok() ? freed : early;
}

void DelayedBackend::Drain() {
  {
    MutexLock lock(&mutex_);
    wanted_ = pushed_;
    changed_.SignalAll();
    while (ran_ < pushed_) {
      changed_.Wait(&mutex_);
    }
  }
  MarkDone(pushed_);
}

const std::byte* DelayedBackend::HostRead(BufferRef ref, uint64_t bytes) {
  const std::byte* host = memory_.Host(ref, bytes);
  if (host == nullptr) {
    return nullptr;
  }
  if (const Item* item = FindConflict({ref.buffer, ref.offset, ref.offset + bytes}, /*reads=*/false);
      item != nullptr) {
    Fail(absl::FailedPreconditionError(
        absl::StrCat(item->name, ": the host reads what it is not known to have written")));
    return nullptr;
  }
  return host;
}

std::byte* DelayedBackend::HostWrite(BufferRef ref, uint64_t bytes) {
  std::byte* host = memory_.Host(ref, bytes);
  if (host == nullptr) {
    return nullptr;
  }
  if (const Item* item = FindConflict({ref.buffer, ref.offset, ref.offset + bytes}, /*reads=*/true);
      item != nullptr) {
    Fail(absl::FailedPreconditionError(
        absl::StrCat(item->name, ": the host writes to staging memory that it still uses")));
    return nullptr;
  }
  return host;
}

absl::Status DelayedBackend::SetSparseSwitches(absl::Span<const SparseSwitchEntry> entries) {
  MutexLock lock(&inner_mutex_);
  return inner_->SetSparseSwitches(entries);
}

BackendCounters DelayedBackend::Counters() const {
  BackendCounters counters = inner_->Counters();
  counters.waits = waits_.load(std::memory_order_relaxed);
  return counters;
}

std::string DelayedBackend::Describe() const {
  return absl::StrCat(inner_->Describe(), ", delayed (seed ", options_.seed, ")");
}

}  // namespace sluice
