#include "common/text/stages/vocabulary.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace sluice {

absl::Status Vocabulary::Add(std::string_view token, int64_t id) {
  const auto name = [token] {
    constexpr size_t kShown = 64;
    return absl::Utf8SafeCEscape(std::string(token.substr(0, kShown)));
  };
  if (id < 0 || id >= kMaxIds) {
    return absl::InvalidArgumentError(
        absl::StrCat("token \"", name(), "\" has id ", id, ", outside [0, ", kMaxIds, ")"));
  }
  const auto index = static_cast<size_t>(id);
  if (index < tokens_.size() && tokens_[index] != nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("id ", id, " is given to both \"",
                                                   absl::Utf8SafeCEscape(*tokens_[index]), "\" and \"",
                                                   name(), "\""));
  }
  if (const std::optional<int32_t> known = Find(token); known.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("token \"", name(), "\" has both id ", *known, " and ", id));
  }
  const std::string& stored = storage_.emplace_back(token);
  ids_.emplace(absl::string_view(stored), static_cast<int32_t>(id));
  if (index >= tokens_.size()) {
    tokens_.resize(index + 1, nullptr);
  }
  tokens_[index] = &stored;
  return absl::OkStatus();
}

}  // namespace sluice
