// Options on the command line and in the TOML file, by CLI11. Its header is slow to compile: include this
// in the one source of each daemon that parses.
//
// Thread safety: thread-compatible; parsing belongs to main's thread.
#pragma once

#include <CLI/CLI.hpp>
#include <istream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/renamed_names.h"
#include "daemon/option_values.h"

namespace sluice {

// OptionDeclarer: adds a daemon's table of options to a CLI11 parser. CLI11's header is slow to compile:
// include this only in the one source of each daemon that parses.
//
// CLI11 reports errors by exceptions of its own, which the caller of parse() catches.
class OptionDeclarer {
 public:
  // `set` collects the names that a flag or the file set. Both borrowed; they outlive parsing.
  OptionDeclarer(CLI::App* app, std::set<std::string>* set) : app_(app), set_(set) {}

  template <typename T>
  void operator()(const OptionSpec& spec, T* member) {
    app_->add_option_function<std::string>(
            absl::StrCat("--", spec.name),
            [name = spec.name, member, set = set_](const std::string& text) {
              Check(name, ParseOptionValue(text, member));
              set->insert(name);
            },
            HelpOf(spec, *member))
        ->type_name("")
        ->default_str(*spec.computed_default == '\0' && HasPlainDefault(*member) ? FormatOptionValue(*member)
                                                                                 : "");
    AcceptOldName(spec.name, member);
  }
  template <typename T>
  void operator()(const OptionSpec& spec, std::vector<T>* member) {
    app_->add_option_function<std::vector<std::string>>(
            absl::StrCat("--", spec.name),
            [name = spec.name, member, set = set_](const std::vector<std::string>& texts) {
              member->clear();
              for (const std::string& text : texts) {
                Check(name, ParseOptionValue(text, &member->emplace_back()));
              }
              set->insert(name);
            },
            HelpOf(spec, *member))
        ->type_name("");
  }

 private:
  // Declares the old name of a renamed option, which --help does not show.
  template <typename T>
  void AcceptOldName(const char* name, T* member) {
    for (const RenamedName& renamed : kRenamedOptions) {
      if (std::string_view(name) != renamed.name) continue;
      app_->add_option_function<std::string>(
              absl::StrCat("--", renamed.old_name),
              [name, old = renamed.old_name, member, set = set_](const std::string& text) {
                PresentName(kRenamedOptions, old);
                Check(name, ParseOptionValue(text, member));
                set->insert(name);
              })
          ->group("");
    }
  }

  template <typename T>
  static std::string HelpOf(const OptionSpec& spec, const T& member) {
    const std::string computed = spec.computed_default;
    return absl::StrCat(DescribeOption(spec, member),
                        computed.empty() ? "" : absl::StrCat(" (default: ", computed, ")"));
  }

  // Zero means a default that is not shown.
  static bool HasPlainDefault(const std::string& value) { return !value.empty(); }
  static bool HasPlainDefault(ByteSize value) { return value.bytes != 0; }
  static bool HasPlainDefault(SizeOrShare value) { return value.bytes != 0 || value.percent > 0; }
  static bool HasPlainDefault(uint32_t value) { return value != 0; }
  static bool HasPlainDefault(int value) { return value >= 0; }
  static bool HasPlainDefault(double value) { return value > 0; }
  template <typename T>
  static bool HasPlainDefault(const T&) {
    return true;
  }

  static void Check(const char* name, const absl::Status& status) {
    if (!status.ok()) {
      throw CLI::ValidationError(absl::StrCat("--", name), std::string(status.message()));
    }
  }

  CLI::App* const app_;
  std::set<std::string>* const set_;
};

// TomlConfig: reads a daemon's config file as TOML for its CLI11 parser, whole or not at all. Invalid TOML,
// an unknown option and an invalid value are CLI::ConfigErrors naming file, line and key. CLI11's own reader
// skips invalid lines and names no file.
//
// Thread safety: as OptionDeclarer.
class TomlConfig final : public CLI::Config {
 public:
  // `app` has --config, and outlives this.
  explicit TomlConfig(const CLI::App* app) : app_(app) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override;
  std::string to_config(const CLI::App*, bool, bool, std::string) const override { return ""; }

 private:
  const CLI::App* const app_;
};

}  // namespace sluice
