// `sluice inspect`: shows the content of a pack, from its tables alone.

#include "cli/command_line.h"
#include "pack/writer/pack_inspect.h"

namespace sluice::cli {

int RunInspect(const CommandContext&, const std::vector<std::string>& args) {
  std::string pack;
  bool json = false;
  ArgParser parser("sluice inspect", "Shows what is in a pack: shapes, encodings, sizes, provenance.");
  parser.Positional("PACK", &pack, "the pack's folder").Flag("--json", &json, "prints one JSON object");
  if (const auto exit_code = parser.Parse(args)) {
    return *exit_code;
  }
  const absl::StatusOr<PackInspection> inspection = InspectPack(pack);
  if (!inspection.ok()) {
    return Fail("sluice inspect", inspection.status(), json);
  }
  std::string text = json ? inspection->ToJson() : inspection->ToText();
  if (text.empty() || text.back() != '\n') {
    text += '\n';
  }
  const absl::Status written = WriteStdout(text);
  return written.ok() ? kExitOk : Fail("sluice inspect", written, false);
}

}  // namespace sluice::cli
