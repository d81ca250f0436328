#include "lab/work_packs.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/launcher.h"
#include "cli/pack_cache.h"
#include "common/base/checksum.h"
#include "common/base/file_io.h"
#include "common/base/status.h"

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;

// Returns a text of everything that determines the pack folder's content, so that another model, calibration
// or profile pack gets another folder. `profiled`: folder of the pack with the profile, or empty.
absl::StatusOr<std::string> IdentityOf(const PackWork& work, const QualityPack& pack,
                                       const std::string& profiled) {
  std::vector<std::string> parts = {pack.synth ? "synth"
                                               : absl::StrCat(work.model, "\n", ModelState(work.model))};
  for (const std::string& arg : pack.args) {
    std::error_code error;
    parts.push_back(arg);
    if (fs::is_regular_file(arg, error)) {  // a recipe file
      ASSIGN_OR_RETURN(parts.back(), TextIdentity(arg));
    }
  }
  if (pack.calibrate && !work.calibration.empty()) {
    ASSIGN_OR_RETURN(const std::string text, TextIdentity(work.calibration));
    parts.push_back(absl::StrCat("calibrated on ", text, " ", work.calibration_tokens.value_or(0)));
  }
  if (!profiled.empty()) {
    parts.push_back(absl::StrCat("profile of ", profiled));
  }
  return absl::StrJoin(parts, "\n");
}

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
  return RunSluice(context, args).status();
}

}  // namespace

absl::Status MakeFolder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  return error ? ErrnoToStatus(error.value(), absl::StrCat("cannot make the folder ", path))
               : absl::OkStatus();
}

std::string DigestName(const std::string& text) { return DigestOf(text).ToHex(); }

absl::StatusOr<std::string> TextIdentity(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  return absl::StrCat(path, " ", DigestName(text));
}

absl::StatusOr<std::string> EnsurePack(const CommandContext& context, const PackWork& work,
                                       const std::vector<QualityPack>& packs, const std::string& name) {
  const auto pack =
      std::find_if(packs.begin(), packs.end(), [&name](const QualityPack& p) { return p.name == name; });
  if (pack == packs.end()) {
    return absl::NotFoundError(absl::StrCat("there is no pack \"", name, "\""));
  }
  std::string profiled;
  if (!pack->profile_of.empty()) {
    ASSIGN_OR_RETURN(profiled, EnsurePack(context, work, packs, pack->profile_of));
  }
  ASSIGN_OR_RETURN(const std::string identity, IdentityOf(work, *pack, profiled));
  const std::string dir = absl::StrCat(work.work, "/", pack->name, "-", DigestName(identity), ".pack");
  if (!FileExists(dir)) {
    if (!pack->synth && work.model.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("pack \"", name, "\" is made from a model: --model is missing"));
    }
    std::vector<std::string> args = {pack->synth ? "synth" : "pack"};
    if (!pack->synth) args.push_back(work.model);
    args.insert(args.end(), {"--out", dir, "--json"});
    args.insert(args.end(), pack->args.begin(), pack->args.end());
    if (!profiled.empty()) {
      args.insert(args.end(), {"--profile", absl::StrCat(profiled, "/profile")});
    }
    RETURN_IF_ERROR(RunSluice(context, args).status());
  }
  const char* last = work.whole_profile ? "predictors.bin" : "thresholds.bin";
  if (pack->calibrate && !FileExists(absl::StrCat(dir, "/profile/", last))) {
    RETURN_IF_ERROR(Calibrate(context, work, dir));
  }
  return dir;
}

}  // namespace sluice::cli
