#include "inferd/guide/guide_matcher.h"

#include <xgrammar/matcher.h>

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "inferd/guide/compiled_guide.h"

namespace sluice::inferd {

struct GrammarMatcher::Impl {
  std::shared_ptr<const CompiledGrammar> grammar;
  xgrammar::GrammarMatcher matcher;
};

GrammarMatcher::GrammarMatcher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrammarMatcher::~GrammarMatcher() = default;

absl::StatusOr<std::unique_ptr<GrammarMatcher>> GrammarMatcher::Create(
    std::shared_ptr<const CompiledGrammar> grammar, absl::Span<const int32_t> end_ids) {
  try {
    std::optional<std::vector<int>> ends;  // without any, the answer ends where no token is allowed
    if (!end_ids.empty()) {
      ends.emplace(end_ids.begin(), end_ids.end());
    }
    xgrammar::GrammarMatcher matcher(grammar->grammar, std::move(ends));
    return std::unique_ptr<GrammarMatcher>(
        new GrammarMatcher(std::make_unique<Impl>(Impl{std::move(grammar), std::move(matcher)})));
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("a constraint cannot begin: ", error.what()));
  }
}

absl::Status GrammarMatcher::FillMask(std::vector<uint32_t>* mask) {
  const uint32_t vocab = impl_->grammar->vocab;
  mask->resize((vocab + 31) / 32);
  int64_t words = static_cast<int64_t>(mask->size());
  DLTensor tensor = {};
  tensor.data = mask->data();
  tensor.device = {kDLCPU, 0};
  tensor.ndim = 1;
  tensor.dtype = xgrammar::GetBitmaskDLType();
  tensor.shape = &words;
  try {
    impl_->matcher.FillNextTokenBitmask(&tensor);
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("a constraint has no mask: ", error.what()));
  }
  return absl::OkStatus();
}

absl::Status GrammarMatcher::Accept(int32_t token) {
  try {
    if (impl_->matcher.AcceptToken(token)) {
      return absl::OkStatus();
    }
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("a constraint failed at token ", token, ": ", error.what()));
  }
  return absl::InternalError(absl::StrCat("a constraint refuses token ", token, ", which it had allowed"));
}

bool GrammarMatcher::complete() const { return impl_->matcher.IsCompleted(); }

}  // namespace sluice::inferd
