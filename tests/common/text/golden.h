// Reads the golden lines of tests/common/text/data (its README describes them).
//
// Thread safety: free functions, safe to call from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice {

struct GoldenCase {
  std::string text;
  bool add_special_tokens = false;
  bool parse_special = true;
  std::vector<int32_t> ids;
  std::string decoded;
  std::string decoded_skip;
};

struct GoldenStream {
  std::vector<int32_t> ids;
  std::vector<std::string> pieces;  // after each id
};

inline constexpr const char* kTextDataDir = "tests/common/text/data";
inline constexpr const char* kGoldenTokenizers[] = {"spm2048", "bytebpe_gpt2", "bytebpe_qwen2",
                                                    "bytebpe_deepseek", "bytebpe_o200k"};

std::string GoldenDir(const std::string& tokenizer);

// Returns nothing if the file cannot be read or a line is malformed.
std::vector<GoldenCase> ReadGoldenCases(const std::string& path);
std::vector<GoldenStream> ReadGoldenStreams(const std::string& path);

std::string ReadWholeFile(const std::string& path);

}  // namespace sluice
