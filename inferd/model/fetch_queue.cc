#include "inferd/model/fetch_queue.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice::inferd {
namespace {

// An id: serial (32 bits), 1 for an extent, class, name (30 bits: an extent, or layer and expert).
constexpr int kDenseBit = 31;
constexpr int kClassBit = 30;
constexpr int kNameBits = 30;
constexpr int kExpertBits = 16;
static_assert(FetchQueue::kMaxExperts == 1u << kExpertBits);
static_assert(FetchQueue::kMaxLayers == 1u << (kNameBits - kExpertBits));

FetchKey KeyOf(uint64_t id) {
  const uint32_t name = id & ((1u << kNameBits) - 1);
  FetchKey key;
  key.request_class = static_cast<RequestClass>(id >> kClassBit & 1);
  if ((id >> kDenseBit & 1) != 0) {
    key.extent = name;
  } else {
    key.layer = name >> kExpertBits;
    key.expert = name & (FetchQueue::kMaxExperts - 1);
  }
  return key;
}

uint64_t NameOf(const FetchRequest& request) {
  const uint64_t request_class = uint64_t{static_cast<uint8_t>(request.request_class)} << kClassBit;
  return request_class | (request.dense_extent != FetchRequest::kNoExtent
                              ? uint64_t{1} << kDenseBit | request.dense_extent
                              : uint64_t{request.layer} << kExpertBits | request.expert);
}

}  // namespace

absl::Status FetchError(const FetchKey& key, absl::StatusCode code) {
  const std::string expert = absl::StrCat("expert ", key.expert, " of layer ", key.layer);
  if (code == absl::StatusCode::kDeadlineExceeded) {
    return ReasonError(code, "WEIGHTS_LATE", absl::StrCat("the disk did not answer in time for ", expert));
  }
  return absl::Status(code, absl::StrCat("weightd could not bring ", expert));
}

absl::Status FetchQueue::Submit(FetchRequest* request) {
  request->id = uint64_t{serial_} << 32 | NameOf(*request);
  const absl::Status status = client_->Submit(*request);
  if (status.ok()) {
    ++serial_;
    ++(KeyOf(request->id).dense() ? outstanding_dense_ : outstanding_experts_);
  }
  return status;
}

absl::StatusOr<uint64_t> FetchQueue::FetchExpert(RequestClass request_class, uint64_t step, uint32_t layer,
                                                 uint32_t expert, PartSet parts,
                                                 const TransferTarget* target) {
  FetchRequest request;
  request.request_class = request_class;
  request.step = step;
  request.layer = layer;
  request.expert = expert;
  request.parts = parts;
  request.transfer = target;
  RETURN_IF_ERROR(Submit(&request));
  return request.id;
}

absl::Status FetchQueue::FetchDense(uint32_t extent, const TransferTarget* target) {
  FetchRequest request;
  request.dense_extent = extent;
  request.transfer = target;
  return Submit(&request);
}

size_t FetchQueue::Poll(absl::FunctionRef<void(const FetchKey&, const FetchCompletion&)> handle) {
  return client_->Poll([&](const FetchCompletion& completion) {
    const FetchKey key = KeyOf(completion.id);
    uint32_t& outstanding = key.dense() ? outstanding_dense_ : outstanding_experts_;
    outstanding -= outstanding > 0 ? 1 : 0;
    bytes_ssd_ += completion.bytes;
    if (!key.dense()) {
      bytes_link_ += completion.link_bytes;
      copy_us_ += completion.copy_us;
    }
    if (key.dense() && listener_ != nullptr && key.extent >= client_->pack().dense_extent_count()) {
      listener_->OnExtent(key.extent, completion);
      return;
    }
    handle(key, completion);
  });
}

absl::Status FetchQueue::Wait(absl::Time deadline) {
  const int64_t start = clock_->NowNanos();
  const int64_t real_start = real_clock_.NowNanos();
  backend_->EndStep();
  const absl::Status status = client_->Wait(deadline);
  backend_->BeginStep();
  stall_nanos_ += clock_->NowNanos() - start;
  real_stall_nanos_ += real_clock_.NowNanos() - real_start;
  return status;
}

void FetchQueue::Forget() {
  outstanding_dense_ = outstanding_experts_ = 0;
  if (listener_ != nullptr) {
    listener_->OnLost();
  }
}

}  // namespace sluice::inferd
