// `sluice verify`: checks every digest and checksum of a pack.

#include "absl/strings/str_format.h"
#include "cli/command_line.h"
#include "cli/pack_progress.h"
#include "common/base/clock.h"
#include "common/base/size.h"
#include "common/base/status.h"
#include "pack/in_place/in_place_checksums.h"
#include "pack/pack.h"
#include "pack/writer/pack_inspect.h"
#include "pack/writer/pack_writer.h"

namespace sluice::cli {
namespace {

absl::StatusOr<int> Verify(const CommandContext& context, const std::string& pack, bool json, bool quiet) {
  const absl::Time start = SteadyNow();
  PackProgressBar bar(quiet);
  ASSIGN_OR_RETURN(const std::unique_ptr<Pack> opened, Pack::Open(pack));
  RETURN_IF_ERROR(opened->in_place() ? VerifyInPlace(pack, bar.callback(), context.interrupt->flag())
                                     : VerifyPack(pack, bar.callback(), context.interrupt->flag()));
  bar.Finish();
  const double seconds = absl::ToDoubleSeconds(SteadyNow() - start);
  ASSIGN_OR_RETURN(const PackInspection inspection, InspectPack(pack));
  if (json) {
    return PrintJson(Json::Object()
                         .Set("model_id", inspection.manifest.model_id)
                         .Set("bytes", inspection.total_bytes)
                         .Set("checksums", inspection.checksums)
                         .Set("seconds", seconds));
  }
  RETURN_IF_ERROR(
      WriteStdout(absl::StrFormat("%s: whole; %d checksums over %s right, %.1f s\n", pack,
                                  inspection.checksums, FormatSize(inspection.total_bytes), seconds)));
  return kExitOk;
}

}  // namespace

int RunVerify(const CommandContext& context, const std::vector<std::string>& args) {
  std::string pack;
  bool json = false;
  bool quiet = false;
  ArgParser parser("sluice verify", "Reads a whole pack and checks every digest and checksum.");
  parser.Positional("PACK", &pack, "the pack's folder")
      .Flag("--json", &json, "prints one JSON object")
      .Flag("-q,--quiet", &quiet, "no progress");
  if (const auto exit_code = parser.Parse(args)) {
    return *exit_code;
  }
  const absl::StatusOr<int> code = Verify(context, pack, json, quiet);
  return code.ok() ? *code : Fail("sluice verify", code.status(), json);
}

}  // namespace sluice::cli
