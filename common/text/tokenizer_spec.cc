#include "common/text/tokenizer_spec.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

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

absl::Status AddMerge(const std::string& left, const std::string& right, uint32_t rank, TokenizerSpec* spec) {
  const std::string joined = left + right;
  const std::optional<int32_t> left_id = spec->vocabulary.Find(left);
  const std::optional<int32_t> right_id = spec->vocabulary.Find(right);
  const std::optional<int32_t> result = spec->vocabulary.Find(joined);
  if (left.empty() || right.empty() || !left_id.has_value() || !right_id.has_value() || !result.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("merge ", rank, " of \"", left, "\" and \"", right,
                                                   "\": a part or the whole is not in the vocabulary"));
  }
  spec->bpe.merges.push_back({*left_id, *right_id, *result, rank});
  return absl::OkStatus();
}

absl::Status AddMergeLine(const std::string& line, uint32_t rank, TokenizerSpec* spec) {
  const size_t space = line.find(' ');
  if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("merge ", rank, " \"", line, "\" is not two tokens"));
  }
  return AddMerge(line.substr(0, space), line.substr(space + 1), rank, spec);
}

absl::Status AddAddedToken(AddedToken token, TokenizerSpec* spec) {
  if (token.content.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("added token ", token.id, " is empty"));
  }
  // A token that BPE cannot make is known only to the matcher. A token that is also in the vocabulary may be
  // listed twice; the later entry determines its flags.
  if (spec->vocabulary.Find(token.content) != token.id) {
    RETURN_IF_ERROR(spec->vocabulary.Add(token.content, token.id));
    spec->bpe.added_only.insert(token.id);
    spec->added_tokens.push_back(std::move(token));
    return absl::OkStatus();
  }
  const auto same = std::find_if(spec->added_tokens.begin(), spec->added_tokens.end(),
                                 [&token](const AddedToken& other) { return other.id == token.id; });
  if (same != spec->added_tokens.end()) {
    *same = std::move(token);
  } else {
    spec->added_tokens.push_back(std::move(token));
  }
  return absl::OkStatus();
}

}  // namespace sluice
