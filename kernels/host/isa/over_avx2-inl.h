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
