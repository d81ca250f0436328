// Products of small matrices of bytes by a warp's tensor cores, sums of 32 bits: exact, so that any order of
// them gives equal bits.
#pragma once

namespace sluice::cuda {

// c += a b, for a of 16 rows and 32 columns, b of 32 rows and 8 columns. With g = lane / 4 and q = lane % 4:
// a[r] has row g (r even) or g + 8, columns 4 q .. 4 q + 3 (r < 2) or 16 more; b[r] has column g, rows
// 4 q .. 4 q + 3, 16 more for r = 1; c[r] has row g (r < 2) or g + 8, column 2 q + r % 2. The bytes of a are
// signed or not, those of b are.
template <bool kSigned>
__device__ inline void MultiplyBytes(const unsigned (&a)[4], const unsigned (&b)[2], int (&c)[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if (kSigned) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
#else
  // The same by quarters, of which sm_75 has the instruction.
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    int* const sums = c + r % 2 * 2;
    if (kSigned) {
      asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
          : "+r"(sums[0]), "+r"(sums[1])
          : "r"(a[r]), "r"(b[r / 2]));
    } else {
      asm("mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
          : "+r"(sums[0]), "+r"(sums[1])
          : "r"(a[r]), "r"(b[r / 2]));
    }
  }
#endif
}

}  // namespace sluice::cuda
