#include "inferd/guide/guide_matcher.h"

#include <xgrammar/matcher.h>

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "inferd/guide/compiled_guide.h"

namespace sluice {

struct GuideMatcher::Impl {
  std::shared_ptr<const CompiledGuide> guide;
  xgrammar::GrammarMatcher matcher;
};

GuideMatcher::GuideMatcher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GuideMatcher::~GuideMatcher() = default;

absl::StatusOr<std::unique_ptr<GuideMatcher>> GuideMatcher::Create(std::shared_ptr<const CompiledGuide> guide,
                                                                   absl::Span<const int32_t> end_ids) {
  try {
    std::optional<std::vector<int>> ends;  // without any, the answer ends where no token is allowed
    if (!end_ids.empty()) {
      ends.emplace(end_ids.begin(), end_ids.end());
    }
    xgrammar::GrammarMatcher matcher(guide->grammar, std::move(ends));
    return std::unique_ptr<GuideMatcher>(
        new GuideMatcher(std::make_unique<Impl>(Impl{std::move(guide), std::move(matcher)})));
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("a guide cannot begin: ", error.what()));
  }
}

absl::Status GuideMatcher::FillMask(std::vector<uint32_t>* mask) {
  const uint32_t vocab = impl_->guide->vocab;
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
    return absl::InternalError(absl::StrCat("a guide has no mask: ", error.what()));
  }
  return absl::OkStatus();
}

absl::Status GuideMatcher::Accept(int32_t token) {
  try {
    if (impl_->matcher.AcceptToken(token)) {
      return absl::OkStatus();
    }
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("a guide failed at token ", token, ": ", error.what()));
  }
  return absl::InternalError(absl::StrCat("a guide does not take token ", token, ", which it had allowed"));
}

bool GuideMatcher::complete() const { return impl_->matcher.IsCompleted(); }

}  // namespace sluice
