#include "kernels/host/rows/rounded_rows.h"

#include <bit>

#include "common/status.h"
#include "pack/row_layout.h"

namespace sluice::cpu {
namespace {

// True for group sizes that are multiplied by bytes.
bool IsWoven(uint32_t group) { return std::has_single_bit(group); }
constexpr uint32_t kOrders = 3;

}  // namespace

absl::Status RoundedForm::Reserve(uint64_t rows, uint32_t cols, bool woven, Scratch* scratch) {
  // A line more than a power of two: the same column of many tokens' rows is read in turn, and would
  // otherwise fall into a few sets of the first-level cache.
  code_stride_ = RoundUp(cols, kCodeAlign) + 64;
  group_stride_ = RoundUp(RoundUp(cols, 16) / 16, 8) + 16;
  RETURN_IF_ERROR(scratch->Reserve(rows * code_stride_, "rounded rows", &codes_));
  if (woven) {
    RETURN_IF_ERROR(scratch->Reserve(kOrders * rows * code_stride_, "woven rounded rows", &woven_));
  }
  RETURN_IF_ERROR(scratch->Reserve(rows * group_stride_, "scales of rounded rows", &scales_));
  return scratch->Reserve(rows * group_stride_, "sums of rounded rows", &sums_);
}

void RoundedForm::Round(const KernelTable& kernels, const float* x, uint32_t cols, uint32_t group,
                        uint32_t i) const {
  QuantizeCall call;
  call.x = x;
  call.cols = cols;
  call.group = group;
  call.codes = codes_ + i * code_stride_;
  call.scales = scales_ + i * group_stride_;
  call.sums = sums_ + i * group_stride_;
  call.woven = IsWoven(group) ? woven_ + kOrders * i * code_stride_ : nullptr;
  kernels.quantize(call);
}

QuantRow RoundedForm::Row(uint32_t i) const {
  return {codes_ + i * code_stride_, scales_ + i * group_stride_, sums_ + i * group_stride_,
          woven_ == nullptr ? nullptr : woven_ + kOrders * i * code_stride_};
}

absl::Status RoundedRows::Reserve(uint32_t max_tokens, uint32_t max_cols, Scratch* scratch) {
  for (uint32_t i = 0; i < kForms; ++i) {
    RETURN_IF_ERROR(forms_[i].Reserve(max_tokens, max_cols, IsWoven((i + 1) * 16), scratch));
  }
  own_.resize(tiles_.threads());
  for (RoundedForm& form : own_) {
    RETURN_IF_ERROR(form.Reserve(kOwnRows, max_cols, /*woven=*/true, scratch));
  }
  return absl::OkStatus();
}

void RoundedRows::RequestForm(const EncodingDescriptor& encoding) {
  if (IsQuantized(encoding.encoding)) {
    requested_[encoding.group / 16 - 1] = true;
  }
}

void RoundedRows::Make(const float* const* x, uint32_t tokens, uint32_t cols) {
  ++generation_;
  for (uint32_t i = 0; i < kForms; ++i) {
    if (!requested_[i]) {
      continue;
    }
    requested_[i] = false;
    tiles_.Run(tokens, uint64_t{tokens} * cols * 4,
               [&](uint32_t t, uint32_t) { forms_[i].Round(kernels_, x[t], cols, (i + 1) * 16, t); });
  }
}

}  // namespace sluice::cpu
