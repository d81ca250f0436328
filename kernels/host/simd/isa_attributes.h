// Compiles a region of code for an instruction set without compiler flags for the file: functions of headers
// included before keep the base instruction set, so that the linker never picks an AVX-512 copy of them for a
// CPU without it. Everything between SLUICE_BEGIN_ISA and SLUICE_END_ISA must be in a namespace of its own.
//
// Thread safety: macros.
#pragma once

#define SLUICE_PRAGMA(text) _Pragma(#text)

#if defined(__clang__)
#define SLUICE_BEGIN_ISA(features) \
  SLUICE_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define SLUICE_END_ISA SLUICE_PRAGMA(clang attribute pop)
#else
#define SLUICE_BEGIN_ISA(features) SLUICE_PRAGMA(GCC push_options) SLUICE_PRAGMA(GCC target(features))
#define SLUICE_END_ISA SLUICE_PRAGMA(GCC pop_options)
#endif
