// The kernels of one instruction set, and its table of them. An instruction set has two sources, so that two
// CPUs share the compilation: kernels_*.cc makes the table; quant_*.cc, which defines SLUICE_QUANT_PRODUCTS,
// has the products of quantized rows with tokens, which take longest to compile.
//
// Included by isa_avx2-inl.h, isa_avx2vnni-inl.h and isa_avx512-inl.h.
//
// Thread safety: pure functions.

#ifndef SLUICE_ISA
#error "included by isa_*-inl.h only"
#endif

// In this order: later ones use earlier ones.
// clang-format off
#include "kernels/cpu/vec-inl.h"
#include "kernels/cpu/rows-inl.h"
#include "kernels/cpu/float_dot-inl.h"
#include "kernels/cpu/float_down-inl.h"
#include "kernels/cpu/quant_codes-inl.h"
#include "kernels/cpu/quant_dot-inl.h"
#include "kernels/cpu/quant_super-inl.h"
#include "kernels/cpu/quant_gemm-inl.h"
#include "kernels/cpu/grid_dot-inl.h"
#include "kernels/cpu/quant_down-inl.h"
#include SLUICE_DOWN
#include "kernels/cpu/quant_many_down-inl.h"
#include "kernels/cpu/span-inl.h"
// clang-format on

#if !defined(SLUICE_QUANT_PRODUCTS)

// Weighted sums of quantized rows: chooses the kernel by the number of tokens and the group size.

// Tokens from which codes are unpacked once for all of them. Panels are fast with AVX-512, and for two bits
// it never gained (Zen 4, groups of 64, both in turn; q3 and mxfp4 were not measured).
template <QuantKind kKind>
inline constexpr uint32_t kManyTokens = kNative == 8              ? 6
                                        : kKind == QuantKind::kQ2 ? UINT32_MAX
                                                                  : 16;

template <QuantKind kKind>
void QuantDown(const QuantDownCall& call) {
  if constexpr (kManyTokens<kKind> != UINT32_MAX) {
    if (call.tokens >= kManyTokens<kKind> && call.fetch == nullptr) {
      return ManyDown<kKind>(call);
    }
  }
  if constexpr (kKind == QuantKind::kMxfp4) {
    return QuantDownRows<kKind, 2>(call);
  } else {
    switch (call.shape.group) {
      case 16:
        return QuantDownRows<kKind, 1>(call);
      case 32:
        return QuantDownRows<kKind, 2>(call);
      case 64:
        return QuantDownRows<kKind, 4>(call);
      case 128:
        return QuantDownRows<kKind, 8>(call);
      default:
        return QuantDownRows<kKind, 0>(call);
    }
  }
}

template <QuantKind kKind>
void SetQuantDown(KernelTable* table) {
  table->quant_down[static_cast<int>(kKind)] = QuantDown<kKind>;
}

inline void SetQuantDowns(KernelTable* table) {
  // q5, q6, iq4 and file blocks have no weighted sums, because only block encodings use them.
  SetQuantDown<QuantKind::kQ8>(table);
  SetQuantDown<QuantKind::kQ4>(table);
  SetQuantDown<QuantKind::kQ3>(table);
  SetQuantDown<QuantKind::kQ2>(table);
  SetQuantDown<QuantKind::kMxfp4>(table);
}

// Defined by the instruction set's quant_*.cc.
void SetQuantProducts(KernelTable* table);

#if !defined(SLUICE_VNNI)

// Ors one line of 64 bytes into a sum.
inline constexpr int kLineParts = 16 / kNative;  // registers of 16 floats, a line
inline void OrLine(const uint8_t* p, N* sum) {
  for (int i = 0; i < kLineParts; ++i) {
    sum[i] = NOr(sum[i], NLoad(reinterpret_cast<const float*>(p + i * kNative * 4)));
  }
}

template <uint32_t kStreams, bool kPrefetch>
uint64_t ReadBytes(const uint8_t* p, uint64_t bytes, uint32_t prefetch) {
  constexpr uint32_t kLines = 4;  // lines of each stream in a row
  N sums[kLines][kLineParts];
  for (auto& sum : sums) {
    for (N& part : sum) {
      part = NZero();
    }
  }
  const uint64_t stream_bytes = bytes / kStreams;
  for (uint64_t at = 0; at < stream_bytes; at += kLines * 64) {
    for (uint32_t s = 0; s < kStreams; ++s) {
      const uint8_t* q = p + s * stream_bytes + at;
      for (uint32_t line = 0; line < kLines; ++line) {
        if constexpr (kPrefetch) {
          _mm_prefetch(reinterpret_cast<const char*>(q) + line * 64 + prefetch, _MM_HINT_T0);
        }
        OrLine(q + line * 64, sums[line]);
      }
    }
  }
  uint32_t out = 0;
  for (auto& sum : sums) {
    for (N& part : sum) {
      uint32_t words[kNative];
      __builtin_memcpy(words, &part, sizeof words);
      for (const uint32_t word : words) {
        out |= word;
      }
    }
  }
  return out;
}

inline uint64_t Read(const uint8_t* p, uint64_t bytes, uint32_t streams, uint32_t prefetch) {
  if (streams == 1) {
    return prefetch == 0 ? ReadBytes<1, false>(p, bytes, 0) : ReadBytes<1, true>(p, bytes, prefetch);
  }
  return prefetch == 0 ? ReadBytes<4, false>(p, bytes, 0) : ReadBytes<4, true>(p, bytes, prefetch);
}

template <class Row>
void SetRowKernels(RowKind kind, KernelTable* table) {
  const int i = static_cast<int>(kind);
  table->dot[i] = Dot<Row>;
  table->gemm[i] = Gemm<Row>;
  table->down[i] = Down<Row>;
  table->decode[i] = Decode<Row>;
}

inline KernelTable MakeTable(const char* name) {
  KernelTable table;
  table.name = name;
  table.gemm_tokens = kTileTokens;
  SetRowKernels<Bf16Row>(RowKind::kBf16, &table);
  SetRowKernels<F16Row>(RowKind::kF16, &table);
  SetRowKernels<F32Row>(RowKind::kF32, &table);
  table.pack = Pack;
  SetQuantProducts(&table);
  SetQuantDowns(&table);
  table.span = Span;
  table.index_scores = IndexScores;
  table.rms_norm = RmsNorm;
  table.layer_norm = LayerNorm;
  table.l2_norm = L2Norm;
  table.convolve = Convolve<false>;
  table.convolve_silu = Convolve<true>;
  table.delta_step = DeltaStep;
  table.mamba_step = MambaStep;
  table.selective_step = SelectiveStep;
  table.clip = Clip;
  table.gate_factor = GateFactor;
  table.up_factor = UpFactor;
  table.multiply = MultiplyRows;
  table.keep_mask = KeepMask;
  table.select_kept = SelectKept;
  table.compress_kept = CompressKept;
  table.kept_indices = KeptIndices;
  table.dot_tokens = kMaxTokens;
  table.add = AddRows;
  table.sigmoid = SigmoidRow;
  table.soft_cap = SoftCap;
  table.sigmoid_mul = SigmoidMul;
  table.accumulate = Accumulate;
  table.combine = Combine;
  table.exp_sum = ExpSum;
  table.largest = Largest;
  table.scale_add = ScaleAdd;
  table.divide = Divide;
  table.read = Read;
  table.rope = Rope;
  table.store_kv = StoreKv;
  return table;
}

#else  // SLUICE_VNNI

// AVX2 with other products of bytes: only the kernels of quantized rows are its own.
inline KernelTable MakeTable(const char* name) {
  KernelTable table = Avx2Kernels();
  table.name = name;
  SetQuantProducts(&table);
  SetQuantDowns(&table);
  return table;
}

#endif  // SLUICE_VNNI

#else  // SLUICE_QUANT_PRODUCTS

template <QuantKind kKind>
void SetQuantProducts(KernelTable* table) {
  const int i = static_cast<int>(kKind);
  table->quant_dot[i] = QuantDot<kKind>;
  table->in_halves[i] = kInHalves<kKind>;
  table->quant_gemm[i] = QuantGemm<kKind>;
  table->quant_decode[i] = QuantDecode<kKind>;
}

void SetQuantProducts(KernelTable* table) {
  table->quantize = Quantize;
  table->pack_quant = PackPanels;
  SetQuantProducts<QuantKind::kQ8>(table);
  SetQuantProducts<QuantKind::kQ4>(table);
  SetQuantProducts<QuantKind::kQ3>(table);
  SetQuantProducts<QuantKind::kQ2>(table);
  SetQuantProducts<QuantKind::kMxfp4>(table);
  SetQuantProducts<QuantKind::kQ5>(table);
  SetQuantProducts<QuantKind::kQ6>(table);
  SetQuantProducts<QuantKind::kIq4>(table);
  constexpr int kFile = static_cast<int>(QuantKind::kFile);
  table->quant_dot[kFile] = FileDot;
  table->quant_gemm[kFile] = FileGemm;
  table->quant_decode[kFile] = DecodeFileRow;
  static_assert(kQuantKinds == 9);
  static_assert(kGemmQuantRows <= kMaxExpandedRows);
}

#endif  // SLUICE_QUANT_PRODUCTS
