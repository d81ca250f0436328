// A compiled guide, for the files that call xgrammar: no other header shows it.
//
// Thread safety: immutable.
#pragma once

#include <xgrammar/compiler.h>

#include <cstdint>

namespace sluice {

struct CompiledGuide {
  xgrammar::CompiledGrammar grammar;
  uint64_t bytes = 0;  // of memory
  uint32_t vocab = 0;  // bits of a mask
};

}  // namespace sluice
