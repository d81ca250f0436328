// Functions compiled for each vector width and chosen at run time. For any width, the same operations in the
// same order give the same bits: sums go over fixed lanes, and the build contracts nothing.
#pragma once

#if defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define SLUICE_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define SLUICE_VECTOR_CLONES
#endif
// Functions called from such a function must be inlined into each clone.
#define SLUICE_ALWAYS_INLINE inline __attribute__((always_inline))
