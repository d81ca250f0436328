// TomlConfig: how a daemon's CLI11 parser reads its config file: as TOML, whole or not at all. What is no
// TOML, no option or no value of one is a CLI::ConfigError naming file, line and key. CLI11's own reader
// takes lines that are neither for nothing, and names no file.
//
// Thread safety: as OptionDeclarer.
#pragma once

#include <CLI/CLI.hpp>
#include <istream>
#include <string>
#include <vector>

namespace sluice {

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
