// Rows of activations rounded to int8, one scale for each group (ARITHMETIC.md 2 b), for products with
// quantized weights. Weights request their group size; each size is made once for all requests.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/encoding.h"
#include "kernels/host/simd/kernel_table.h"
#include "kernels/host/work/scratch.h"
#include "kernels/host/work/tiles.h"

namespace sluice::cpu {

// Memory for rows rounded for one group size at a time.
class RoundedForm {
 public:
  // Reserves up to `rows` of up to `cols` values; `woven`: also for group sizes that are multiplied by bytes.
  absl::Status Reserve(uint64_t rows, uint32_t cols, bool woven, Scratch* scratch);

  // Rounds x, `cols` values long, into row `i`. REQUIRES `woven` for groups of 16, 32, 64 and 128.
  void Round(const KernelTable& kernels, const float* x, uint32_t cols, uint32_t group, uint32_t i) const;
  QuantRow Row(uint32_t i) const;

 private:
  int8_t* codes_ = nullptr;  // [rows][code_stride_]
  int8_t* woven_ = nullptr;  // [rows][3 * code_stride_], or nullptr
  float* scales_ = nullptr;  // [rows][group_stride_]
  float* sums_ = nullptr;
  uint64_t code_stride_ = 0;
  uint64_t group_stride_ = 0;
};

// The rows of a call in every form that its weights need.
class RoundedRows {
 public:
  // Both must outlive it.
  RoundedRows(const KernelTable& kernels, Tiles& tiles) : kernels_(kernels), tiles_(tiles) {}
  // Errors: as Scratch.
  absl::Status Reserve(uint32_t max_tokens, uint32_t max_cols, Scratch* scratch);

  // Requests the form for weights of this encoding in the next Make(); no effect if not quantized.
  void RequestForm(const EncodingDescriptor& encoding);
  // Rounds the rows x[0 .. tokens) of `cols` values in the forms requested since the last Make().
  void Make(const float* const* x, uint32_t tokens, uint32_t cols);
  // Changes with every Make(), so that data derived from earlier rows can be detected.
  uint64_t generation() const { return generation_; }
  // Row `token` for a requested group size.
  QuantRow Row(uint32_t group, uint32_t token) const { return forms_[group / 16 - 1].Row(token); }

  // Memory for kOwnRows rows that the worker rounds itself, for one group size at a time.
  static constexpr uint32_t kOwnRows = 16;
  const RoundedForm& own(uint32_t worker) const { return own_[worker]; }

 private:
  static constexpr uint32_t kForms = 8;  // groups of 16, 32, ..., 128

  const KernelTable& kernels_;
  Tiles& tiles_;
  RoundedForm forms_[kForms];
  bool requested_[kForms] = {};
  uint64_t generation_ = 0;
  std::vector<RoundedForm> own_;  // [workers]
};

}  // namespace sluice::cpu
