// Masks of a block of at most 64 neurons, one bit each, and the values that they keep (ARITHMETIC.md 3).

// Bit j, j < n: not |lead[j]| < threshold. Reads 64 values.
inline uint64_t KeepMask(const float* lead, uint32_t n, float threshold) {
  const N limit = NSet1(threshold);
  uint64_t mask = 0;
  for (uint32_t j = 0; j < n; j += kNative) {
    mask |= uint64_t{NMaskNotLess(NAbs(NLoad(lead + j)), limit)} << j;
  }
  return n == 64 ? mask : mask & ((uint64_t{1} << n) - 1);
}

// out[j] = values[j] where bit j is set, else +0, for 64 values. out may be values.
inline void SelectKept(const float* values, uint64_t mask, float* out) {
  for (uint32_t j = 0; j < 64; j += kNative) {
    NStore(out + j, NKeep(NLoad(values + j), static_cast<uint32_t>(mask >> j)));
  }
}

// The values whose bits are set, in order. Reads 64 values, writes up to 64 and not beyond.
inline void CompressKept(const float* values, uint64_t mask, float* out) {
  uint32_t count = 0;
  for (uint32_t j = 0; j < 64; j += kNative) {
    const uint32_t bits = static_cast<uint32_t>(mask >> j) & ((uint32_t{1} << kNative) - 1);
    // At most j values are before this register's, so a whole register fits.
    NStore(out + count, NCompress(NLoad(values + j), bits));
    count += static_cast<uint32_t>(__builtin_popcount(bits));
  }
}

// The numbers of the set bits, ascending, padded with zeros to a multiple of kNative. Returns how many.
inline uint32_t KeptIndices(uint64_t mask, uint32_t* out) {
  uint32_t count = 0;
  for (uint32_t j = 0; j < 64; j += kNative) {
    const uint32_t bits = static_cast<uint32_t>(mask >> j) & ((uint32_t{1} << kNative) - 1);
    NStoreIndices(out + count, j, bits);
    count += static_cast<uint32_t>(__builtin_popcount(bits));
  }
  return count;
}
