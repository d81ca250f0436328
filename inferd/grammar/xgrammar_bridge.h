// CompiledGrammar: a compiled grammar, for the files that use xgrammar; no other header exposes it.
//
// Thread safety: immutable.
#pragma once

#include <xgrammar/compiler.h>

#include <cstdint>
#include <string>

namespace sluice::inferd {

struct CompiledGrammar {
  xgrammar::CompiledGrammar grammar;
  uint64_t bytes = 0;  // memory
  uint32_t vocab = 0;  // number of bits of a mask
};

// Collects messages of xgrammar. Its errors are exceptions; its warnings name the parts that it ignores.
//
// Thread safety: a WarningScope collects the messages of its own thread only.

// Collects the warnings of this thread during its lifetime; without a scope they are dropped.
class WarningScope {
 public:
  WarningScope();
  ~WarningScope();
  WarningScope(const WarningScope&) = delete;
  WarningScope& operator=(const WarningScope&) = delete;

  // The first warning; "" if there was none.
  const std::string& first() const { return first_; }
  void Add(const std::string& warning);

 private:
  WarningScope* const outer_;
  std::string first_;
};

}  // namespace sluice::inferd
