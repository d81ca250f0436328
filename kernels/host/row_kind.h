// Unquantized encodings as indices of the kernel table.
//
// Thread safety: a pure function.
#ifndef SLUICE_KERNELS_HOST_ROW_KIND_H_
#define SLUICE_KERNELS_HOST_ROW_KIND_H_

#include "common/encoding.h"
#include "kernels/host/kernel_table.h"

namespace sluice::host {

// REQUIRES bf16, f16 or f32.
inline int RowKindOf(Encoding encoding) {
  switch (encoding) {
    case Encoding::kBf16:
      return static_cast<int>(RowKind::kBf16);
    case Encoding::kF16:
      return static_cast<int>(RowKind::kF16);
    default:
      return static_cast<int>(RowKind::kF32);
  }
}

}  // namespace sluice::host

#endif  // SLUICE_KERNELS_HOST_ROW_KIND_H_
