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
  table.rms_norm = RmsNorm;
  table.layer_norm = LayerNorm;
  table.l2_norm = L2Norm;
  table.convolve = Convolve<false>;
  table.convolve_silu = Convolve<true>;
  table.delta_step = DeltaStep;
  table.mamba_step = MambaStep;
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
