#include "cli/daemon_options.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/size.h"
#include "common/base/status.h"
#include "daemon/inferd_option_table.h"
#include "daemon/weightd_option_table.h"

namespace sluice::cli {
namespace {

constexpr size_t kHintColumns = 100;
constexpr char kModelHelp[] =
    "M: a model's folder, a GGUF file, or a pack; a GGUF file is served in place, a folder packed once, into "
    "a "
    "cache (`sluice packs`)";
constexpr char kServedNameHelp[] = "; or a name at a running server of several models";
constexpr std::initializer_list<const char*> kModelBits = {"bf16", "f16", "q8",   "q4",
                                                           "q3",   "q2",  "file", "file-q4"};
constexpr char kBitsHelp[] =
    "of a --model that is packed; file: of a folder its own, in place [GGUF: its own, in place; else q8 if "
    "memory "
    "holds it, else q4]";

template <typename T>
constexpr bool kIsList = false;
template <typename T>
constexpr bool kIsList<std::vector<T>> = true;

// Calls visit(spec, member with its default) for each daemon option that commands of `audience` accept.
template <typename Visit>
void ForEachPassedOn(OptionAudience audience, Visit visit) {
  const auto pass = [&](const OptionSpec& spec, const auto* member) {
    if (spec.audience == audience) visit(spec, *member);
  };
  inferd::InferdOptions inferd;
  ForEachOption(&inferd, pass);
  weightd::WeightdOptions weightd;
  ForEachOption(&weightd, pass);
}

// Returns the value in the form of the daemon's flag. INVALID_ARGUMENT: not a value of the option.
template <typename T>
absl::StatusOr<std::string> Normalized(const OptionSpec& spec, const std::string& text, T member) {
  RETURN_IF_ERROR(Annotate(ParseOptionValue(text, &member), absl::StrCat("--", spec.name)));
  RETURN_IF_ERROR(CheckOption(spec, member));
  return FormatOptionValue(member);
}
template <typename T>
absl::StatusOr<std::string> Normalized(const OptionSpec& spec, const std::string& text, std::vector<T>) {
  return Normalized(spec, text, T());
}

template <typename Options>
std::vector<OptionText> SettingsOf(const std::vector<OptionText>& given) {
  std::vector<OptionText> settings;
  Options table;
  ForEachOption(&table, [&](const OptionSpec& spec, const auto*) {
    for (const OptionText& option : given) {
      if (spec.audience != OptionAudience::kDaemon && option.name == spec.name) settings.push_back(option);
    }
  });
  return settings;
}

// Returns the end of --help: the names of the hidden options.
std::string Hint() {
  std::string text = "Options of the daemons, explained by --help-all:";
  size_t column = kHintColumns;
  ForEachPassedOn(OptionAudience::kEveryCommand, [&](const OptionSpec& spec, const auto&) {
    const std::string word = absl::StrCat("--", spec.name);
    const bool breaks = column + 1 + word.size() > kHintColumns;
    absl::StrAppend(&text, breaks ? "\n" : " ", word);
    column = (breaks ? 0 : column + 1) + word.size();
  });
  return text + "\nof finding and starting them: --address --admin --keep --no-restart";
}

}  // namespace

void CommonOptions::DeclareFor(OptionAudience audience, ArgParser* parser) {
  ForEachPassedOn(audience, [&]<typename T>(const OptionSpec& spec, const T& member) {
    const std::string shown = DefaultOf(spec, member);
    parser->Values(
        absl::StrCat("--", spec.name), kIsList<T>,
        [this, spec, member](const std::vector<std::string>& texts) -> absl::Status {
          std::vector<std::string> values;
          for (const std::string& text : texts) {
            ASSIGN_OR_RETURN(values.emplace_back(), Normalized(spec, text, member));
          }
          SetAll(spec.name, values);
          return absl::OkStatus();
        },
        absl::StrCat(DescribeOption(spec, member), shown.empty() ? "" : absl::StrCat(" [", shown, "]")));
  });
}

void CommonOptions::Declare(ArgParser* parser, bool needs_pack) {
  if (needs_pack) {
    parser->Text("--model", &model, absl::StrCat(kModelHelp, takes_served_name ? kServedNameHelp : ""))
        .Choice("--bits", {kModelBits.begin(), kModelBits.end()}, &bits, kBitsHelp)
        .RequireOneOf({"--model", "--pack"});
  }
  parser->Text("--pack", &pack, "PACK: the pack's folder");
  DeclareDaemons(parser);
}

void CommonOptions::DeclareSeveral(ArgParser* parser) {
  parser->Texts("--model", &several.models, kModelHelp)
      .Choice("--bits", {kModelBits.begin(), kModelBits.end()}, &bits, kBitsHelp)
      .Texts("--pack", &several.packs, "PACK: the pack's folder");
  parser->Group("Several models, each loaded at its first request")
      .Text("--models", &several.folder,
            "DIR: a folder of packs, all of which are served; --model and --pack may be repeated")
      .TimeSpan("--idle-unload", &several.idle_unload,
                "unloads a model without requests after this; 0: never; its weights stay in memory [10m]")
      .Size("--models-budget", &several.budget,
            "memory of all loaded models beside their weights, on device cuda the device's; the least "
            "recently used one makes "
            "room [the rest of the machine's memory; on device cuda one model at a time]");
  DeclareDaemons(parser);
}

void CommonOptions::DeclareDaemons(ArgParser* parser) {
  const std::string hint = Hint();
  parser->HiddenGroup("Options of the daemons (sizes as 512MiB, 2GB)", hint);
  DeclareFor(OptionAudience::kEveryCommand, parser);
  parser->HiddenGroup("Finding and starting them", hint)
      .Text("--address", &address, "of a running inferd: unix:PATH or HOST:PORT [SLUICE_HOST, else started]")
      .Text("--admin", &admin,
            "of that inferd's operators: unix:PATH or PATH [inferd-admin.sock beside inferd.sock]")
      .TimeSpan("--keep", &keep, "leaves started daemons running for this long, as 10m [0]")
      .Flag("--no-restart", &no_restart, "does not start a daemon again that was killed");
  parser->Group("Options")
      .Flag("-v,--verbose", &verbose, "says what the launcher does, and where the logs are")
      .Flag("-q,--quiet", &quiet, "no progress, no line of options");
}

void CommonOptions::DeclareCosts(ArgParser* parser) {
  parser->Group("Costs on the virtual clock");
  DeclareFor(OptionAudience::kExperiments, parser);
}

void CommonOptions::DeclareServe(ArgParser* parser) {
  parser->Group("HTTP, gRPC and cached prefixes");
  DeclareFor(OptionAudience::kServe, parser);
}

std::string CommonOptions::ValueOr(std::string_view name, const std::string& otherwise) const {
  const std::vector<std::string> values = All(name);
  return values.empty() ? otherwise : values.back();
}

std::vector<std::string> CommonOptions::All(std::string_view name) const {
  std::vector<std::string> values;
  for (const OptionText& option : given) {
    if (option.name == name) values.push_back(option.value);
  }
  return values;
}

void CommonOptions::SetAll(const std::string& name, const std::vector<std::string>& values) {
  std::erase_if(given, [&](const OptionText& option) { return option.name == name; });
  for (const std::string& value : values) {
    given.push_back({name, value});
  }
}

std::vector<OptionText> CommonOptions::InferdSettings() const {
  return SettingsOf<inferd::InferdOptions>(given);
}

std::vector<OptionText> CommonOptions::WeightdSettings() const {
  return SettingsOf<weightd::WeightdOptions>(given);
}

std::vector<std::string> AsFlags(const std::vector<OptionText>& settings) {
  std::vector<std::string> flags;
  for (const OptionText& setting : settings) {
    flags.push_back(absl::StrCat("--", setting.name));
    flags.push_back(setting.value);
  }
  return flags;
}

bool SameOptionValue(const std::string& a, const std::string& b) {
  if (a == b) {
    return true;
  }
  double number_a = 0;
  double number_b = 0;
  if (absl::SimpleAtod(a, &number_a) && absl::SimpleAtod(b, &number_b)) {
    return number_a == number_b;
  }
  const auto size_a = ParseSize(a);
  const auto size_b = ParseSize(b);
  return size_a.ok() && size_b.ok() && *size_a == *size_b;
}

bool IsListOption(const std::string& name) {
  bool is_list = false;
  inferd::InferdOptions table;
  ForEachOption(&table, [&]<typename T>(const OptionSpec& spec, const T*) {
    is_list = is_list || (name == spec.name && kIsList<T>);
  });
  return is_list;
}

bool HoldsPolicies(const std::string& in_effect, const std::string& asked) {
  const std::vector<std::string> held = SplitList(in_effect);
  for (const std::string& one : SplitList(asked)) {
    const std::pair<std::string, std::string> want = absl::StrSplit(one, absl::MaxSplits('=', 1));
    const bool found = std::any_of(held.begin(), held.end(), [&](const std::string& text) {
      const std::pair<std::string, std::string> have = absl::StrSplit(text, absl::MaxSplits('=', 1));
      return have.first == want.first && SameOptionValue(have.second, want.second);
    });
    if (!found) {
      return false;
    }
  }
  return true;
}

}  // namespace sluice::cli
