// GrammarMatcher: state of one answer in a compiled grammar; computes the tokens allowed next.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "inferd/guide/guide_compiler.h"

namespace sluice::inferd {

class GrammarMatcher {
 public:
  // `end_ids`: tokens that end an answer; they are allowed only where the answer is complete.
  static absl::StatusOr<std::unique_ptr<GrammarMatcher>> Create(
      std::shared_ptr<const CompiledGrammar> grammar, absl::Span<const int32_t> end_ids);
  ~GrammarMatcher();

  // Sets the bits of the allowed tokens: bit id % 32 of word id / 32. INTERNAL: the matcher failed.
  absl::Status FillMask(std::vector<uint32_t>* mask);

  // Advances by `token`. INTERNAL if the mask had not allowed it.
  absl::Status Accept(int32_t token);

  // True if the answer so far is complete.
  bool complete() const;

 private:
  struct Impl;
  explicit GrammarMatcher(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::inferd
