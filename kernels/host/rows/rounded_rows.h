// Rows of activations rounded to int8, one scale a group (ARITHMETIC.md 2 b): what products with quantized
// weights read. Weights ask for the group size that they have; it is made once for all that ask.
//
// Thread safety: thread-compatible; between two Make()s all workers may call Row(), and each use its own().
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/encoding.h"
#include "kernels/host/simd/kernel_table.h"
#include "kernels/host/work/scratch.h"
#include "kernels/host/work/tiles.h"

namespace sluice::host {

// Memory for rows rounded for one group size at a time.
class RoundedForm {
 public:
  // Up to `rows` of up to `cols` values; `woven`: of group sizes that are multiplied by bytes, too.
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

// The rows of a call in every form that its weights want.
class RoundedRows {
 public:
  // Both outlive it.
  RoundedRows(const KernelTable& kernels, Tiles& tiles) : kernels_(kernels), tiles_(tiles) {}
  // Errors: Scratch's.
  absl::Status Reserve(uint32_t max_tokens, uint32_t max_cols, Scratch* scratch);

  // Weights of this encoding will be multiplied with the rows of the next Make(); nothing if not quantized.
  void Want(const EncodingDescriptor& encoding);
  // Rounds the rows x[0 .. tokens) of `cols` values for what was wanted since the last time.
  void Make(const float* const* x, uint32_t tokens, uint32_t cols);
  // Another number after every Make(): what was made of rows before is old.
  uint64_t generation() const { return generation_; }
  // Row `token` for a group size that was wanted.
  QuantRow Row(uint32_t group, uint32_t token) const { return forms_[group / 16 - 1].Row(token); }

  // Room for kOwnRows rows that the worker rounds itself, for one group size at a time.
  static constexpr uint32_t kOwnRows = 16;
  const RoundedForm& own(uint32_t worker) const { return own_[worker]; }

 private:
  static constexpr uint32_t kForms = 8;  // groups of 16, 32, ..., 128

  const KernelTable& kernels_;
  Tiles& tiles_;
  RoundedForm forms_[kForms];
  bool wanted_[kForms] = {};
  uint64_t generation_ = 0;
  std::vector<RoundedForm> own_;  // [workers]
};

}  // namespace sluice::host
