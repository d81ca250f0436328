#include "tests/common/text/golden.h"

#include <fstream>
#include <iterator>

#include "nlohmann/json.hpp"

namespace sluice {

std::string GoldenDir(const std::string& tokenizer) { return std::string(kTextDataDir) + "/" + tokenizer; }

std::string ReadWholeFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

std::vector<GoldenCase> ReadGoldenCases(const std::string& path) {
  std::vector<GoldenCase> cases;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object()) {
      return {};
    }
    GoldenCase golden;
    golden.text = json.at("text").get<std::string>();
    golden.add_special_tokens = json.value("add_special_tokens", false);
    golden.parse_special = json.value("parse_special", true);
    golden.ids = json.at("ids").get<std::vector<int32_t>>();
    golden.decoded = json.at("decoded").get<std::string>();
    golden.decoded_skip = json.at("decoded_skip").get<std::string>();
    cases.push_back(std::move(golden));
  }
  return cases;
}

std::vector<GoldenStream> ReadGoldenStreams(const std::string& path) {
  std::vector<GoldenStream> streams;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object()) {
      return {};
    }
    streams.push_back(
        {json.at("ids").get<std::vector<int32_t>>(), json.at("pieces").get<std::vector<std::string>>()});
  }
  return streams;
}

}  // namespace sluice
