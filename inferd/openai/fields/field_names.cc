#include "inferd/openai/fields/field_names.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/error_detail.h"

namespace sluice::inferd {

std::string AliasOf(const std::string& field, const FieldAliases& aliases) {
  for (const auto& [from, to] : aliases) {
    if (const size_t at = field.find(from); at != std::string::npos) {
      return absl::StrCat(field.substr(0, at), to, field.substr(at + from.size()));
    }
  }
  return field;
}

absl::Status ToApiFieldNames(const absl::Status& status, const FieldAliases& aliases) {
  const std::string field = FieldOf(status);
  const std::string alias = AliasOf(field, aliases);
  if (alias == field) {
    return status;
  }
  const absl::string_view description = absl::StripPrefix(status.message(), field);
  absl::Status renamed(status.code(), absl::StrCat(alias, description));
  status.ForEachPayload(
      [&renamed](absl::string_view type, const absl::Cord& payload) { renamed.SetPayload(type, payload); });
  renamed.SetPayload(kFieldPayload, absl::Cord(alias));
  return renamed;
}

}  // namespace sluice::inferd
