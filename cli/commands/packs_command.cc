// `sluice packs`: lists and removes the packs that commands with --model have made.

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/command_line.h"
#include "cli/pack_cache.h"
#include "common/base/size.h"
#include "common/base/status.h"

namespace sluice::cli {
namespace {

struct Options {
  std::string action;
  std::vector<std::string> names;
  bool all = false;
  bool json = false;
};

Json PackJson(const CachedPack& pack) {
  return Json::Object()
      .Set("name", pack.name)
      .Set("path", pack.path)
      .Set("bytes", pack.bytes)
      .Set("used", absl::FormatTime(absl::RFC3339_sec, pack.used, absl::UTCTimeZone()))
      .Set("complete", pack.complete);
}

absl::StatusOr<int> List(const std::string& folder, bool json) {
  ASSIGN_OR_RETURN(const std::vector<CachedPack> packs, ListCachedPacks(folder));
  if (json) {
    Json list = Json::Array();
    for (const CachedPack& pack : packs) list.Append(PackJson(pack));
    return PrintJson(list);
  }
  uint64_t bytes = 0;
  std::string text;
  for (const CachedPack& pack : packs) {
    bytes += pack.bytes;
    absl::StrAppendFormat(&text, "%-60s %10s  used %s%s\n", pack.name, FormatSize(pack.bytes),
                          absl::FormatTime("%Y-%m-%d %H:%M", pack.used, absl::LocalTimeZone()),
                          pack.complete ? "" : "  (not complete: the same command goes on with it)");
  }
  absl::StrAppend(&text, packs.size(), " packs, ", FormatSize(bytes), ", in ", folder, "\n");
  RETURN_IF_ERROR(WriteStdout(text));
  return kExitOk;
}

absl::StatusOr<int> Remove(const std::string& folder, const Options& o) {
  std::vector<std::string> names = o.names;
  if (o.all) {
    ASSIGN_OR_RETURN(const std::vector<CachedPack> packs, ListCachedPacks(folder));
    for (const CachedPack& pack : packs) names.push_back(pack.name);
  }
  Json removed = Json::Array();
  for (const std::string& name : names) {
    RETURN_IF_ERROR(RemoveCachedPack(folder, name));
    removed.Append(name);
    if (!o.json) RETURN_IF_ERROR(WriteStdout(absl::StrCat("removed ", name, "\n")));
  }
  return o.json ? PrintJson(Json::Object().Set("removed", removed)) : kExitOk;
}

}  // namespace

int RunPacks(const CommandContext&, const std::vector<std::string>& args) {
  Options options;
  ArgParser parser("sluice packs", "Lists or removes the packs that commands with --model have made.");
  parser.Positional("ACTION", &options.action, "list or remove")
      .Positionals("NAME", &options.names, "of packs to remove, as `list` shows them")
      .Flag("--all", &options.all, "removes every pack of the cache")
      .Flag("--json", &options.json, "prints one JSON value");
  if (const auto exit_code = parser.Parse(args)) {
    return *exit_code;
  }
  const bool list = options.action == "list";
  if (!list && options.action != "remove") {
    return parser.UsageError(absl::StrCat("'", options.action, "' is none of list and remove"));
  }
  if (list ? options.all || !options.names.empty() : options.all != options.names.empty()) {
    return parser.UsageError(list ? "list takes no names" : "give the names to remove, or --all");
  }
  const absl::StatusOr<std::string> folder = PackCacheFolder();
  const absl::StatusOr<int> code = !folder.ok() ? absl::StatusOr<int>(folder.status())
                                   : list       ? List(*folder, options.json)
                                                : Remove(*folder, options);
  return code.ok() ? *code : Fail("sluice packs", code.status(), options.json);
}

}  // namespace sluice::cli
