#include "common/profile/profile_json.h"

#include "absl/strings/str_cat.h"
#include "common/profile/profile_file.h"
#include "common/status.h"

namespace sluice {
namespace {

constexpr uint64_t kFormat = 1;

}  // namespace

absl::Status ToDataLoss(const absl::Status& status) {
  return absl::IsInvalidArgument(status) ? absl::DataLossError(status.message()) : status;
}

absl::StatusOr<JsonObject> CheckProfileRoot(const nlohmann::json& root, const std::string& subject,
                                            const char* key_name, const std::string& key,
                                            std::string* found) {
  ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(root, subject));
  ASSIGN_OR_RETURN(const uint64_t format, object.Uint("format", 0, kMaxProfileCount));
  if (format != kFormat) {
    return absl::UnimplementedError(
        absl::StrCat(subject, ": format ", format, " is not supported (this build reads ", kFormat, ")"));
  }
  ASSIGN_OR_RETURN(*found, object.String(key_name));
  RETURN_IF_ERROR(CheckProfileKey(subject, key_name, *found, key));
  return object;
}

std::string FormatProfile(nlohmann::json body) {
  body["format"] = kFormat;
  return body.dump(1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace sluice
