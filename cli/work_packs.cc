#include "cli/work_packs.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/self_run.h"
#include "common/checksum.h"
#include "common/status.h"

namespace sluice::cli {
namespace {

absl::Status Calibrate(const CommandContext& context, const PackWork& work, const std::string& dir) {
  if (work.calibration.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(dir, " is to be calibrated: --calibration FILE is missing"));
  }
  std::vector<std::string> args = {"calibrate", "--pack", dir, "--text", work.calibration, "--json"};
  if (!work.whole_profile) {
    args.insert(args.end(), {"--sensitivity-tokens", "0", "--sparsity-tokens", "0", "--no-predictors"});
  }
  if (work.calibration_tokens.has_value()) {
    args.insert(args.end(), {"--max-tokens", absl::StrCat(*work.calibration_tokens)});
  }
  return RunSelf(context, args).status();
}

}  // namespace

bool FileExists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

std::string DigestName(const std::string& text) { return DigestOf(text).ToHex(); }

absl::StatusOr<std::string> EnsurePack(const CommandContext& context, const PackWork& work,
                                       const std::vector<QualityPack>& packs, const std::string& name) {
  const auto pack =
      std::find_if(packs.begin(), packs.end(), [&name](const QualityPack& p) { return p.name == name; });
  if (pack == packs.end()) {
    return absl::NotFoundError(absl::StrCat("there is no pack \"", name, "\""));
  }
  const std::string arguments =
      absl::StrCat(pack->synth ? "synth" : work.model, "\n", absl::StrJoin(pack->args, "\n"));
  const std::string dir = absl::StrCat(work.work, "/", pack->name, "-", DigestName(arguments), ".pack");
  if (!FileExists(dir)) {
    if (!pack->synth && work.model.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("pack \"", name, "\" is made from a model: --model is missing"));
    }
    std::vector<std::string> args = {pack->synth ? "synth" : "pack"};
    if (!pack->synth) args.push_back(work.model);
    args.insert(args.end(), {"--out", dir, "--json"});
    args.insert(args.end(), pack->args.begin(), pack->args.end());
    if (!pack->profile_of.empty()) {
      ASSIGN_OR_RETURN(const std::string profiled, EnsurePack(context, work, packs, pack->profile_of));
      args.insert(args.end(), {"--profile", absl::StrCat(profiled, "/profile")});
    }
    RETURN_IF_ERROR(RunSelf(context, args).status());
  }
  const char* last = work.whole_profile ? "predictors.bin" : "thresholds.bin";
  if (pack->calibrate && !FileExists(absl::StrCat(dir, "/profile/", last))) {
    RETURN_IF_ERROR(Calibrate(context, work, dir));
  }
  return dir;
}

}  // namespace sluice::cli
