// TomlConfig: reads a daemon's config file as TOML for its CLI11 parser, whole or not at all. Invalid TOML,
// an unknown option and an invalid value are CLI::ConfigErrors naming file, line and key. CLI11's own reader
// skips invalid lines and names no file.
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
