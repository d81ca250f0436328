// CompiledGrammar: a compiled grammar, for the files that use xgrammar; no other header exposes it.
//
// Thread safety: immutable.
#pragma once

#include <xgrammar/compiler.h>

#include <cstdint>

namespace sluice::inferd {

struct CompiledGrammar {
  xgrammar::CompiledGrammar grammar;
  uint64_t bytes = 0;  // memory
  uint32_t vocab = 0;  // number of bits of a mask
};

}  // namespace sluice::inferd
